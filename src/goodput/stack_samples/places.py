"""Counts raw stacks of `py-spy record` by the innermost line of the user's own code."""

from __future__ import annotations

import re
from collections import Counter

from goodput.wire.identity import clean_text
from goodput.wire.sampled_stacks import PLACE_CHARACTERS_MAX

# A stack with a frame in one of these is in a phase of automatic instrumentation.
IN_A_PHASE = (
    *("torch/nn/modules/module.py", "torch/_tensor.py", "torch/autograd/", "torch/optim/"),
    *("torch/distributed/", "torch/nn/utils/clip_grad.py", "torch/utils/data/dataloader.py"),
    *("torch/serialization.py", "goodput/"),
)
LIBRARIES = ("torch/", "numpy/", "site-packages/", "lib/python3", "<frozen", "<")
_UNNAMED = re.compile(r"thread \(\w+\)")
_FRAME = re.compile(r"^(?P<function>.+) \((?P<file>[^()]+):(?P<line>\d+)\)$")


def places(raw: str) -> Counter[str]:
    """Samples of the main thread outside phases by place: "FILE:FUNCTION, line N", FILE without its folder.

    A program that has not imported `threading` has a thread without a name; if it is the only one it is the main thread.
    """
    found: Counter[str] = Counter()
    lines = [text.rpartition(" ") for text in raw.splitlines()]
    is_alone = len({stack.partition(";")[0] for stack, _, _ in lines}) == 1
    for stack, _, count in lines:
        thread, *frames = stack.split(";")
        is_count = count.isascii() and count.isdigit() and len(count) < 10
        is_main = "MainThread" in thread or (is_alone and _UNNAMED.fullmatch(thread))
        if not is_main or not is_count or any(part in stack for part in IN_A_PHASE):
            continue
        matches = [match for match in map(_FRAME.match, frames) if match]
        own = [match for match in matches if not match["file"].startswith(LIBRARIES)] or matches
        if own:
            name = own[-1]["file"].rpartition("/")[2]
            place = f"{name}:{own[-1]['function']}, line {own[-1]['line']}"
            found[clean_text(place, PLACE_CHARACTERS_MAX)] += int(count)
    return found
