"""The steps of all runs of a log, or of rank pages, for replays."""

from __future__ import annotations

import numpy as np

from goodput.account import Account, Attempt, Run
from goodput.account.account import ReplayedGains
from goodput.whatif.gains import replayed_gains
from goodput.whatif.steps import ROWS_MAX, Recorder, steps_in


class Recorders:
    """A Recorder for each run of a log, or for the one of this name."""

    def __init__(self, run: str | None = None, rows_max: int = ROWS_MAX):
        self._only, self._rows_max = run, rows_max
        self._by_run: dict[str, Recorder] = {}

    def of(self, run: str) -> Recorder:
        if run not in self._by_run:
            self._by_run[run] = Recorder(self._rows_max)
        return self._by_run[run]

    def add_columns(
        self, run: str, attempt: Attempt, steps: np.ndarray, counts: np.ndarray, states: np.ndarray
    ) -> None:
        if self._only in (None, run):
            self.of(run).add_columns(attempt, steps, counts, states)

    def gains(self, account: Account) -> ReplayedGains | None:
        """The gains of a run; see gains.replayed_gains."""
        return replayed_gains(account, self.of(account.run))


def recorded(run: Run) -> Recorder:
    """The steps of a run whose rows are at hand."""
    recorder = Recorder()
    for attempt in run.attempts.values():
        for step in steps_in(run.name, attempt):
            recorder.add(step)
    return recorder
