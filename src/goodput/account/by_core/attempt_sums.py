"""What one attempt comes to, from the core's sums and the time after its last row, in states of the account."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import sub

from goodput._core import PLANNED_STATES, READ_INDEX, ROW_STATES, TAIL_COLUMNS, TAIL_STATES
from goodput.account.facts import Bound
from goodput.account.states import INDEX, share, vector

_INSIDE = [(READ_INDEX[state], INDEX[state]) for state in ROW_STATES]
_OUTSIDE = [(READ_INDEX[f"outside_{state}"], INDEX[state]) for state in ROW_STATES]
_MOVED = [(READ_INDEX["straggler_ns"], INDEX["straggler"]), (READ_INDEX["bubble_ns"], INDEX["bubble"])]
_TAIL = [(TAIL_COLUMNS.index(state), INDEX[state]) for state in TAIL_STATES]
_TAIL_COMPUTE, _TAIL_SAVED = TAIL_COLUMNS.index("compute_ns"), TAIL_COLUMNS.index("saved_ns")
_COMPILE, _STALL, _LOST = INDEX["compile"], INDEX["stall"], INDEX["lost"]
_UNPLANNED = [at for at, state in enumerate(TAIL_STATES) if state not in PLANNED_STATES]
WORK_PARTS = 10**9


@dataclass(slots=True)
class AttemptSums:
    """Times in ns; vectors are by goodput.account.states.STATES."""

    kept: list[int] = field(default_factory=vector)  # of kept steps
    rest: list[int] = field(default_factory=vector)  # of everything else in its bound
    tail: list[int] = field(default_factory=vector)  # the part of `rest` that follows the newest row
    ending: list[int] = field(default_factory=vector)  # the same of one that made steps
    rows: int = 0
    kept_steps: int = 0
    lost_steps: int = 0
    kept_ns: int = 0  # of kept steps but for compiling and stalls, and of the one that is being made
    saved_ns: int = 0  # saving checkpoints, lost or not, in its bound or not
    compute_ns: int = 0  # the same of all compute
    device_ns: int = 0  # length of steps that the device's clock divided
    work: float = 0.0  # kept steps, those that cross the bound in part
    kept_samples: float = 0.0
    samples: int = 0
    rate: float | None = None  # samples per second of its fastest steps
    lost_by: dict[int, tuple[int, int]] = field(default_factory=dict)  # by restart: steps, ns
    end_ns: int = 0  # of its newest row; its start without rows
    top_step: int = -1
    clamped: int = 0  # rows that contradicted the one before
    matched_ns: int = 0  # of steps that were compared
    waited_ns: int = 0  # for slower ranks
    caused_ns: int = 0  # waiting of others for this one
    caused_in_group_ns: int = 0
    compared_steps: int = 0
    compared_own_ns: int = 0  # own time of these and of compared rows of several steps, but for the first
    compared_count: int = 0  # their steps
    last_steps: int = 0  # compared steps in which others waited for it
    first_compared: int | None = None  # the first step in which it was compared with peers
    is_slow: bool = False
    threshold_ns: int = 0  # from how long on a wait would be a stall now
    lengths: int = 0  # step lengths that are known of its rank


def attempt_sums(values: Sequence[int]) -> AttemptSums:
    """From one row of CoreRun.read_all; the tail is still to be added."""
    found = AttemptSums()
    for at, state in _INSIDE:
        found.kept[state] = values[at]
    for at, state in _MOVED:
        found.kept[state] = values[at]
    for at, state in _OUTSIDE:
        found.rest[state] = values[at]
    read = {name: values[at] for name, at in READ_INDEX.items()}
    found.rest[_LOST] = read["lost_ns"]
    found.waited_ns, found.rows = read["straggler_ns"], read["rows"]
    found.kept_steps, found.lost_steps = read["steps"] - read["lost_steps"], read["lost_steps"]
    found.kept_ns = sum(found.kept) - found.kept[_COMPILE] - found.kept[_STALL]
    # As long as a first step is compiling provisionally its work has no compute beside it.
    found.work = max(read["work"] / WORK_PARTS - read["provisional"], 0.0)
    found.kept_samples = float(read["kept_samples"])
    found.first_compared = read["first_compared"] if read["first_compared"] >= 0 else None
    found.is_slow = bool(read["slow"])
    for name in _COPIED:
        setattr(found, name, read[name])
    return found


_COPIED = (
    *("saved_ns", "compute_ns", "device_ns", "samples", "end_ns", "top_step", "clamped", "matched_ns"),
    *(
        "caused_ns",
        "caused_in_group_ns",
        "compared_steps",
        "compared_own_ns",
        "compared_count",
        "last_steps",
        "threshold_ns",
        "lengths",
    ),
)


def add_tail(sums: AttemptSums, tail: Mapping[str, int], bound: Bound, end_ns: int) -> None:
    """Add the time from the newest row to `end_ns`, TAIL_COLUMNS, as far as it lies in the bound."""
    ns = [tail[name] for name in TAIL_COLUMNS]
    states = vector()
    for at, state in _TAIL:
        states[state] = ns[at]
    began, length = sums.end_ns, sum(states)
    if began < bound.from_ns or end_ns > bound.to_ns:
        part = max(0, min(end_ns, bound.to_ns) - max(began, bound.from_ns))
        states = share(states, part, length)
        for at in (_TAIL_SAVED, _TAIL_COMPUTE):
            ns[at] = ns[at] * part // length if length else 0
    sums.saved_ns += ns[_TAIL_SAVED]
    sums.compute_ns += ns[_TAIL_COMPUTE]
    for state, more in enumerate(states):
        sums.rest[state] += more
    sums.tail = states
    is_stall = sum(ns[at] for at in _UNPLANNED) > sums.threshold_ns
    if sums.rows:
        sums.ending = states
        if bound.running and not bound.died and not is_stall:
            sums.kept_ns += sum(states)


_ADDED_UP = (
    *(
        "kept_steps",
        "lost_steps",
        "kept_ns",
        "saved_ns",
        "device_ns",
        "work",
        "kept_samples",
        "samples",
        "clamped",
        "matched_ns",
    ),
    *("waited_ns", "caused_ns", "caused_in_group_ns", "compared_steps", "last_steps"),
    *("compared_own_ns", "compared_count"),
)


def since(sums: AttemptSums, before: AttemptSums | None) -> AttemptSums:
    """The sums of what came after `before`, which are of the same attempt up to an earlier time."""
    if before is None:
        return sums
    lost = dict.fromkeys(before.lost_by, (0, 0)) | sums.lost_by
    return replace(
        sums,
        kept=_not_negative(list(map(sub, sums.kept, before.kept))),
        rest=list(map(sub, sums.rest, before.rest)),
        ending=list(map(sub, sums.ending, before.ending)),
        lost_by={
            number: (
                steps - before.lost_by.get(number, (0, 0))[0],
                ns - before.lost_by.get(number, (0, 0))[1],
            )
            for number, (steps, ns) in lost.items()
        },
        **{name: getattr(sums, name) - getattr(before, name) for name in _ADDED_UP},
    )


def _not_negative(states: list[int]) -> list[int]:
    """Of a step that the border cuts each part was rounded down by itself: what is missing is of the largest."""
    for at, ns in enumerate(states):
        if ns < 0:
            states[at] = 0
            states[states.index(max(states))] += ns
    return states
