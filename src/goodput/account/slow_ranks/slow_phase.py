"""The phase in which a slow rank or stage exceeds its peers: `forward` apart from `backward`, which are one state.

Time in phases is taken from the cumulative totals of each attempt's rows, without the rows that would distort it: the
first one, which compiles, those that are lost, cross the account's bounds, contain a stall, or contradict themselves.
A comparison is of means per step within an attempt, as `straggler` compares states.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from itertools import starmap
from operator import sub
from statistics import median
from typing import NamedTuple, cast

from goodput.account.states import INDEX, PHASE_STATES

NOT_OWN = tuple(INDEX[state] for state in ("communication", "straggler", "bubble", "compile", "stall"))
_NO_OWN_WORK = {"communication", "compile"}


class PhaseTimes(NamedTuple):
    """One attempt's time in phases within `steps` of its steps, in ns: `totals` less `outside` and `left_out`.

    The latter two are empty where `totals` has the difference already, as now always; accounts that were stored by
    earlier versions have them. `states` are those of the user's phases.
    """

    phases: tuple[str, ...]
    states: Mapping[str, str]
    steps: int
    totals: tuple[int, ...]
    outside: tuple[int, ...] = ()
    left_out: tuple[int, ...] = ()

    def by_phase(self) -> dict[str, float]:
        ns = self.totals
        if self.outside:
            ns = map(sub, starmap(sub, zip(ns, self.outside, strict=True)), self.left_out)
        return dict(zip(self.phases, ns, strict=False))

    def compact(self) -> PhaseTimes:
        """A copy of 8 bytes a phase, in an array, which an account that is stored must not have."""
        totals = cast("tuple[int, ...]", array("d", self.by_phase().values()))
        return self._replace(totals=totals, outside=(), left_out=())


def mean_phases(times: PhaseTimes | None, before: PhaseTimes | None = None) -> dict[str, float] | None:
    """ns per step in each phase of own work, since `before`; None where no step counts. A log lacks phases without time, so
    {} is a known mean too."""
    if times is None:
        return None
    steps, earlier = times.steps, {}
    if before is not None:
        steps, earlier = steps - before.steps, before.by_phase()
    if steps <= 0:
        return None
    return {
        phase: (ns - earlier.get(phase, 0)) / steps
        for phase, ns in times.by_phase().items()
        if _state_of(phase, times.states) not in _NO_OWN_WORK
    }


def compute_shares(every: Iterable[PhaseTimes]) -> list[tuple[str, float]]:
    """The share of each phase of state `productive` in their time together, largest first."""
    sums: dict[str, float] = {}
    for times in every:
        for phase, ns in times.by_phase().items():
            if ns > 0 and _state_of(phase, times.states) == "productive":
                sums[phase] = sums.get(phase, 0) + ns
    total = sum(sums.values())
    return sorted(((phase, ns / total) for phase, ns in sums.items()), key=lambda one: (-one[1], one[0]))


def excess(own: Mapping[str, float], others: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """By phase, what `own` is above the median of the others; {} without any."""
    beside = list(others)
    if not beside:
        return {}
    return {phase: ns - median(one.get(phase, 0.0) for one in beside) for phase, ns in own.items()}


def most_of(sums: Mapping[str, float], states: Mapping[str, str], state: str | None = None) -> str | None:
    """The phase with the largest sum, of those that map to `state`; None where that is no phase or not above 0."""
    chosen = {p: ns for p, ns in sums.items() if ns > 0 and state in (None, _state_of(p, states))}
    found = max(chosen, key=lambda phase: (chosen[phase], phase), default=None)
    return None if found == "none" else found


def _state_of(phase: str, states: Mapping[str, str]) -> str:
    return PHASE_STATES.get(phase) or states.get(phase) or "unattributed"
