"""Where a phase's time is in the rows of attempts: a column for each name, in attempts of a run that map names alike.

Names beyond those that have a column share one for each state.
"""

from __future__ import annotations

from collections.abc import Iterable

from goodput.account import Attempt
from goodput.account.attempts import states_of_phases
from goodput.account.states import PHASE_STATES, STATES, USER_STATES, state_of

NAMES_MAX = 200  # with a column of their own; the core takes 255 columns
NONE = 0  # the column of time that no phase names
_SHARED = "other {} phases"


class Layout:
    """The columns of an attempt whose phases are set."""

    def __init__(self, attempt: Attempt):
        self.names, self._states_of = attempt.phases, attempt.phase_states
        self.states = states_of_phases(attempt)  # of each column
        self._columns = {name: column for column, name in enumerate(self.names)}

    def __len__(self) -> int:
        return len(self.names)

    def column(self, phase: str) -> int:
        found = self._columns.get(phase)
        if found is None:
            found = self._columns[_SHARED.format(STATES[state_of(phase, self._states_of)])]
        return found

    def has_state(self, phase: str) -> bool:
        """Whether it is known which state the phase is."""
        return phase in PHASE_STATES or phase in self._states_of


class PhaseNames:
    """The names that occur in a run, the first NAMES_MAX of them."""

    def __init__(self):
        self._names: dict[str, None] = {"none": None}
        self._has_more = False

    def add(self, names: Iterable[str]) -> None:
        for name in names:
            if name in self._names:
                continue
            if len(self._names) > NAMES_MAX:
                self._has_more = True
            else:
                self._names[name] = None

    def set_phases(self, attempts: Iterable[Attempt]) -> None:
        """Give the attempts of the run their phases; those whose phases map alike share the objects."""
        shared: dict[tuple, tuple[tuple[str, ...], dict[str, str]]] = {}
        for attempt in attempts:
            key = tuple(sorted(attempt.phase_states.items()))
            if key not in shared:
                shared[key] = self._phases(attempt.phase_states)
            attempt.phases, attempt.phase_states = shared[key]

    def _phases(self, states: dict[str, str]) -> tuple[tuple[str, ...], dict[str, str]]:
        names, states = ["none", *sorted(self._names.keys() - {"none"})], dict(states)
        if "launch" in names:
            # A log may have it as a phase, measured by a trace or by counters.
            states["launch"] = "launch"
        if self._has_more:
            more = {_SHARED.format(state): state for state in USER_STATES}
            names += more.keys() - set(names)
            states |= more
        return tuple(names), states
