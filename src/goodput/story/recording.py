"""The steps of a run in the form in which its story reads them: cumulative times of each attempt, whatever their number.

Rows are cumulative, so leaving every second one out loses no time; of more than ROWS_MAX that is done. The first step
of an attempt is left out, since it has the start in it. A step that lasts PAUSE_TIMES times as long as those before it,
and PAUSE_NS, is a pause: it is kept apart, and no part of the pace.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from goodput.account import Attempt
from goodput.account.states import INDEX, PLANNED, STATES

if TYPE_CHECKING:
    from goodput.runlog.replay import Step

Key = tuple[int, int]  # attempt number, rank
ROWS_MAX = 400_000  # of all ranks; of each 24 bytes and 8 for each state that its attempt was in
PAUSE_NS, PAUSE_TIMES, PAUSES_MAX = 60 * 10**9, 5, 4096
SAVES_MAX = 4096  # of one attempt of a rank
SAVE_NS_MIN = 100_000_000
_SPENT = 3  # the first column of a track's rows that has ns of a state
_CHECKPOINT = INDEX["checkpoint"]
_PLANNED = [INDEX[state] for state in PLANNED]
_UNPLANNED = [i for i, state in enumerate(STATES) if state not in PLANNED]


class Pause(NamedTuple):
    """One step of a rank that lasted far longer than others, from `start_ns` to `end_ns`, with its ns by state."""

    key: Key
    step: int
    start_ns: int
    end_ns: int
    states: list[int]

    def unplanned_ns(self) -> int:
        return sum(self.states[i] for i in _UNPLANNED)


class Save(NamedTuple):
    """A checkpoint that took `ns` of the step that ended at `end_ns`."""

    end_ns: int
    ns: int


@dataclass
class Track:
    """One attempt of a rank. A row of `rows` has the end and the index of a step, and of all steps so far their number and
    ns by state, in the order of `states`: those that it was in, of which most have a third of all."""

    attempt: Attempt
    states: list[int] = field(default_factory=list)
    parts: list[np.ndarray] = field(default_factory=list)  # of `rows`
    last_end_ns: int = 0
    count: int = 0
    spent: np.ndarray = field(default_factory=lambda: np.zeros(len(STATES), np.int64))
    saves: list[Save] = field(default_factory=list)

    @property
    def rows(self) -> np.ndarray:
        if len(self.parts) > 1:
            self.parts = [np.concatenate(self.parts)]
        return self.parts[0] if self.parts else np.zeros((0, _SPENT), np.int64)

    def add(self, ends: np.ndarray, steps: np.ndarray, done: np.ndarray, spent: np.ndarray) -> None:
        """Add rows; `spent` is ns of all steps so far by state, (rows, all states)."""
        new = [at for at in np.flatnonzero(spent.any(axis=0)).tolist() if at not in self.states]
        if new:
            self.states += new
            self.parts = [np.pad(part, ((0, 0), (0, len(new)))) for part in self.parts]
        self.parts.append(np.column_stack([ends, steps, done, spent[:, self.states]]))

    def at(self, times_ns: np.ndarray) -> np.ndarray:
        """Steps and ns by state up to these moments (moments, 1 + states), by interpolation between rows."""
        rows = self.rows
        ends = np.maximum.accumulate(rows[:, 0]).astype(float)
        found = np.zeros((len(times_ns), 1 + len(STATES)))
        for column, place in enumerate([0, *(1 + state for state in self.states)], _SPENT - 1):
            found[:, place] = np.interp(times_ns, ends, rows[:, column])
        return found

    def time_of(self, step: int) -> int:
        """When the step with this index ended, by interpolation between rows."""
        rows = self.rows
        return int(np.interp(step, np.maximum.accumulate(rows[:, 1]), rows[:, 0]))

    def thin(self) -> None:
        rows = self.rows
        if len(rows) > 3:
            # The last one stays.
            self.parts = [np.concatenate([rows[:-1:2], rows[-1:]])]


class Recording:
    """Takes the steps of one run, each attempt's in their order (runlog.replay.TakesSteps); then `tracks` has them."""

    def __init__(self, rows_max: int = ROWS_MAX, weight: float = 1.0):
        """Where only some ranks are recorded, each stands for `weight` ranks."""
        self.weight = weight
        self.tracks: dict[Key, Track] = {}
        self.pauses: list[Pause] = []
        self._rows_max, self._count = rows_max, 0

    def add(self, step: Step) -> None:
        states = np.array(step.states, np.int64)[:, None]
        self.add_rows(
            step.attempt, np.array([step.step]), np.array([step.count]), states, np.array([step.end_ns])
        )

    def add_columns(
        self, run: str, attempt: Attempt, steps: np.ndarray, counts: np.ndarray, states: np.ndarray
    ) -> None:
        """As runlog.replay.TakesSteps: ns by state are (states, steps) and sum to the time since the step before."""
        self.add_rows(attempt, steps, counts, states, None)

    def add_rows(
        self,
        attempt: Attempt,
        steps: np.ndarray,
        counts: np.ndarray,
        states: np.ndarray,
        ends: np.ndarray | None,
    ) -> None:
        """Several steps of an attempt as in `add_columns`, and when they ended (unix ns), else by their lengths."""
        if not len(steps):
            return
        key = attempt.attempt, attempt.rank
        track, lengths = self.tracks.get(key), states.sum(axis=0)
        if track is None:
            track = self.tracks[key] = Track(attempt, last_end_ns=attempt.start_ns)
        ends = track.last_end_ns + np.cumsum(lengths) if ends is None else ends
        track.last_end_ns = int(ends[-1])
        states = states.T.copy()
        if not track.parts:
            counts = np.concatenate([[0], counts[1:]])
            states[0] = 0
        self._note_saves(track, ends, states)
        states = self._without_pauses(key, track, steps, counts, ends, states)
        done, spent = track.count + np.cumsum(counts), track.spent + np.cumsum(states, axis=0)
        # A copy, or all of `spent` would stay.
        track.count, track.spent = int(done[-1]), spent[-1].copy()
        track.add(ends, steps, done, spent)
        self._count += len(steps)
        if self._count > self._rows_max:
            self._thin()

    def _note_saves(self, track: Track, ends: np.ndarray, states: np.ndarray) -> None:
        for at in np.flatnonzero(states[:, _CHECKPOINT] > SAVE_NS_MIN).tolist():
            if len(track.saves) < SAVES_MAX:
                track.saves.append(Save(int(ends[at]), int(states[at, _CHECKPOINT])))

    def _without_pauses(
        self,
        key: Key,
        track: Track,
        steps: np.ndarray,
        counts: np.ndarray,
        ends: np.ndarray,
        states: np.ndarray,
    ) -> np.ndarray:
        """Note the pauses among these steps, and take their time out."""
        unplanned = states[:, _UNPLANNED].sum(axis=1)
        for at in np.flatnonzero((unplanned > PAUSE_NS) & (counts == 1)).tolist():
            done = track.count + int(counts[:at].sum())
            before = track.spent.sum() - track.spent[_PLANNED].sum() + unplanned[:at].sum()
            if done and unplanned[at] > PAUSE_TIMES * before / done and len(self.pauses) < PAUSES_MAX:
                length = int(states[at].sum())
                start, end = int(ends[at]) - length, int(ends[at])
                self.pauses.append(Pause(key, int(steps[at]), start, end, states[at].tolist()))
                states[at] = 0
                unplanned[at] = 0
        return states

    def _thin(self) -> None:
        for track in self.tracks.values():
            track.thin()
        self._count = sum(len(track.rows) for track in self.tracks.values())


class Recordings:
    """A Recording for each run of a log (runlog.replay.TakesSteps)."""

    def __init__(self):
        self.by_run: dict[str, Recording] = {}

    def of(self, run: str) -> Recording:
        return self.by_run.setdefault(run, Recording())

    def add_columns(
        self, run: str, attempt: Attempt, steps: np.ndarray, counts: np.ndarray, states: np.ndarray
    ) -> None:
        self.of(run).add_columns(run, attempt, steps, counts, states)
