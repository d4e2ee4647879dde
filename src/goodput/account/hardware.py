"""What samples of a rank's GPU add to its account: idle time inside compute (`launch`), and energy.

Samples are cumulative: `compute_ns` observed in compute phases, `idle_ns` of it without work on the device. Of an
attempt's compute the part idle_ns / max(compute_ns, all its compute) becomes `launch`; nothing is extrapolated to
unobserved time. It is an estimate: idle time is taken to be spread evenly over compute. Only the newest figures are
kept, so a window has the whole attempt's share of idle time, and energy in proportion to its length.
"""

from __future__ import annotations

from operator import add

from goodput.account.attempts import Attempt, states_of_phases
from goodput.account.states import INDEX

_PRODUCTIVE, _LAUNCH = INDEX["productive"], INDEX["launch"]


def is_cut(attempt: Attempt) -> bool:
    """Whether the samples contradict themselves: more idle time than compute."""
    return attempt.hardware.get("idle_ns", 0) > attempt.hardware.get("compute_ns", 0)


def states_of(attempt: Attempt, sums) -> list[int]:
    """An attempt's ns per state, its idle time in `launch`."""
    states = list(map(add, sums.kept, sums.rest))
    moved = idle_part(attempt, sums.compute_ns, states[_PRODUCTIVE])
    states[_PRODUCTIVE] -= moved
    states[_LAUNCH] += moved
    return states


def idle_part(attempt: Attempt, compute_ns: int, productive_ns: int) -> int:
    """The part of `productive_ns` that is idle. `compute_ns` is the attempt's compute as far as it was added up."""
    idle, whole = idle_share(attempt, compute_ns)
    return productive_ns * idle // whole if idle else 0


def idle_share(attempt: Attempt, compute_ns: int) -> tuple[int, int]:
    """(idle, compute) of an attempt: the same for each of its windows, as far as its own totals are known."""
    covered = attempt.hardware.get("compute_ns", 0)
    totals = zip(states_of_phases(attempt), attempt.totals, strict=False)
    reported = sum(ns for state, ns in totals if state == _PRODUCTIVE)
    return min(attempt.hardware.get("idle_ns", 0), covered), max(covered, reported, compute_ns)


def energy_mj(attempt: Attempt, counted_ns: int) -> int | None:
    """The energy, in mJ, of `counted_ns` of the attempt's life; None where energy was not measured."""
    whole = attempt.hardware.get("energy_mj", 0)
    if whole <= 0:
        return None
    known = attempt.known_end_ns()
    end_ns = max(attempt.beat_ns() if known is None else known, attempt.rows_end_ns)
    life_ns = end_ns - attempt.start_ns
    return whole * min(counted_ns, life_ns) // life_ns if life_ns > 0 else whole
