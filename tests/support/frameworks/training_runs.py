"""Runs a training script of a framework and reads the rank pages that it wrote.

A script such as lightning_trainings.py trains several times in one process, since importing a framework takes
seconds; each training is a run with pages of its own. The script prints the delays it planted as one line of JSON.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from support.frameworks.script_process import run_script

from goodput.account import compute, document
from goodput.account.states import INDEX
from goodput.rank_page.reader import Reader
from goodput.sdk.reports.local_accounts import runs_in

OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TOKENIZERS_PARALLELISM": "false"}


class Trained:
    """The result of a script: `printed` is its JSON, `errors` its standard error."""

    def __init__(self, directory: Path, printed: dict, errors: str):
        self.directory, self.printed, self.errors = directory, printed, errors

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

    def messages(self) -> list[str]:
        """Lines that goodput printed."""
        return [line for line in self.errors.splitlines() if line.startswith("goodput: ")]


def train(script: str, directory: Path, *args: str, forked: str = "torch", **environ: str) -> Trained:
    pages = directory / "pages"
    environ = {**OFFLINE, "GOODPUT_DIR": str(pages), "OMP_NUM_THREADS": "1", **environ}
    done = run_script(script, directory, *args, forked=forked, **environ)
    return Trained(pages, json.loads(done.stdout.splitlines()[-1]), done.stderr)


def steps(snapshot) -> list[int]:
    return [row.step for row in snapshot.steps]


def committed(snapshot) -> list[int]:
    return [event.step for event in snapshot.events if event.kind == "checkpoint_committed"]


def resumed(snapshot) -> list[int]:
    return [event.step for event in snapshot.events if event.kind == "resumed"]
