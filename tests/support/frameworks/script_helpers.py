"""Shared by the training scripts: a slow dataset, a hash of weights, and the result line."""

from __future__ import annotations

import hashlib
import json
import sys
import time

ITEM_SECONDS = 0.002


class Slow:
    """A map-style dataset with slow items; `spent_seconds` is the time they took."""

    def __init__(self, items: list, seconds: float = ITEM_SECONDS):
        self.items, self.item_seconds, self.spent_seconds = items, seconds, 0.0

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int):
        began = time.perf_counter()
        time.sleep(self.item_seconds)
        self.spent_seconds += time.perf_counter() - began
        return self.items[index]


def digest(model) -> str:
    """A hash of a model's weights."""
    found = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        found.update(name.encode() + value.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


def print_result(**values) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
