"""Training scripts of frameworks: each in a process of its own, and what its pages say.

A script (lightning_trainings.py and its kin) trains several times in one process, since importing a framework takes
seconds: each training is a run with pages of its own. It prints what it planted as one line of JSON.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from support.paths import PYTHONPATH, SUPPORT

from goodput.account import compute, document
from goodput.account.states import INDEX
from goodput.rank_page.reader import Reader
from goodput.sdk.reports.local_accounts import runs_in

OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TOKENIZERS_PARALLELISM": "false"}


class Trained:
    """What a script left: `told` is its JSON, `errors` what stands on standard error."""

    def __init__(self, directory: Path, told: dict, errors: str):
        self.directory, self.told, self.errors = directory, told, errors

    def snapshots(self, run: str) -> list:
        """The pages of a run, in the order of attempts."""
        found = []
        for path in self.directory.glob("*.page"):
            with Reader(str(path)) as reader:
                found.append(reader.snapshot())
        return sorted((s for s in found if s.identity["run"] == run), key=lambda s: s.identity["attempt"])

    def seconds(self, run: str) -> dict[str, float]:
        """Seconds per phase over all attempts."""
        total: dict[str, float] = {}
        for snapshot in self.snapshots(run):
            for phase, ns in zip(snapshot.phases, snapshot.totals, strict=True):
                total[phase] = total.get(phase, 0.0) + ns / 1e9
        return total

    def account(self, run: str):
        runs, errors = runs_in(str(self.directory), time.perf_counter_ns())
        assert errors == []
        return compute(next(each for each in runs if each.name == run), time.time_ns())

    def states(self, run: str) -> dict[str, float]:
        (rank,) = self.account(run).ranks
        return {state: rank.states[index] / 1e9 for state, index in INDEX.items()}

    def kept_and_lost(self, run: str) -> tuple[int, int]:
        """Steps."""
        account = document(self.account(run))
        return account["steps"]["kept"], account["steps"]["lost"]

    def said(self) -> list[str]:
        return [line for line in self.errors.splitlines() if line.startswith("goodput: ")]


def train(script: str, directory: Path, *args: str, **environ: str) -> Trained:
    """Run a script of this folder; it must end well."""
    pages = directory / "pages"
    process = subprocess.run(
        [sys.executable, str(SUPPORT / "frameworks" / "scripts" / script), str(directory), *args],
        env={
            **os.environ,
            **OFFLINE,
            "PYTHONPATH": PYTHONPATH,
            "GOODPUT_DIR": str(pages),
            "OMP_NUM_THREADS": "1",
            **environ,
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.returncode == 0, process.stderr
    return Trained(pages, json.loads(process.stdout.splitlines()[-1]), process.stderr)


# -- for the scripts

ITEM_SECONDS = 0.002


class Slow:
    """A map-style dataset whose items take a while; `spent_seconds` is how long they really took."""

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
    """Of a model's weights, bit by bit."""
    found = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        found.update(name.encode() + value.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


def tell(**what) -> None:
    sys.stdout.write(json.dumps(what) + "\n")


# -- for the tests


def steps(snapshot) -> list[int]:
    return [row.step for row in snapshot.steps]


def committed(snapshot) -> list[int]:
    return [event.step for event in snapshot.events if event.kind == "checkpoint_committed"]


def resumed(snapshot) -> list[int]:
    return [event.step for event in snapshot.events if event.kind == "resumed"]
