"""What a rank's GPU did, as samples of it say: how much of compute the device idled in, and the energy it took.

In: an attempt's figures (schema.Live.hardware: cumulative, what is 0 left out) and its fold. Out: the attempt's states
with `launch` taken out of `productive`, and its part of the measured energy.

Samples tell how long the rank was in a compute phase while they looked (compute_ns) and in how much of it the device
had nothing to run (idle_ns). Nothing is extrapolated: of the attempt's compute, the part idle_ns / max(compute_ns, all
its compute) goes to `launch`. Only the newest cumulative figures are kept, so a window of the past has the share of the
whole attempt, and of its energy the part that the window is of the attempt's life. It is an estimate: a sample stands
for the time around it, and idle time is taken to be spread evenly over compute, kept or lost.
"""

from __future__ import annotations

from operator import add

from goodput.account.states import INDEX
from goodput.account.timeline import Attempt

_PRODUCTIVE, _LAUNCH = INDEX["productive"], INDEX["launch"]


def is_sampled(attempt: Attempt) -> bool:
    """Whether it is known how much of this attempt's compute was idle, be it nothing."""
    return attempt.hardware.get("compute_ns", 0) > 0


def is_cut(attempt: Attempt) -> bool:
    """Whether its figures contradict each other: more idle than there was compute."""
    return attempt.hardware.get("idle_ns", 0) > attempt.hardware.get("compute_ns", 0)


def states_of(attempt: Attempt, fold) -> list[int]:
    """A finished fold's ns per state. `fold.compute_ns` is all compute of the attempt, in whatever state it counts."""
    states = list(map(add, fold.kept, fold.rest))
    covered = attempt.hardware.get("compute_ns", 0)
    idle = min(attempt.hardware.get("idle_ns", 0), covered)
    if idle:
        moved = states[_PRODUCTIVE] * idle // max(covered, fold.compute_ns)
        states[_PRODUCTIVE] -= moved
        states[_LAUNCH] += moved
    return states


def energy_mj(attempt: Attempt, counted_ns: int) -> int | None:
    """The energy, in mJ, of `counted_ns` of the attempt's life; None where none was measured."""
    whole = attempt.hardware.get("energy_mj", 0)
    if whole <= 0:
        return None
    known = attempt.known_end_ns()
    end_ns = max(attempt.beat_ns() if known is None else known, attempt.rows_end_ns)
    life_ns = end_ns - attempt.start_ns
    return whole * min(counted_ns, life_ns) // life_ns if life_ns > 0 else whole
