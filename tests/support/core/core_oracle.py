"""Time in states by brute force, written from docs/definitions.md and sharing no code with the core.

It looks at whole lives of processes, each a list of steps with their parts; what was reported as one row of several
steps is marked so. It is slow on purpose.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

PLANNED = {"checkpoint", "evaluation", "rollout", "restore", "compile"}
STAYS_BEFORE_STEPS = {"restore", "compile", "rollout", "stall"}
# The order of states, of which the first of equals takes the rest of a division.
ROW_ORDER = (
    *("productive", "loader", "h2d", "communication", "launch", "checkpoint", "evaluation"),
    *("rollout", "compile", "startup", "restore", "stall", "unattributed"),
)
MINUTE = 60 * 10**9


@dataclass
class Life:
    """One rank process: its rows in order. Each row is of one step, or of several that were reported as a sum."""

    rank: int
    start_ns: int
    group: str
    rows: list[LifeRow]
    stage: int = 0
    unit: int = 0
    limit: int | None = None  # the last step that counts
    points: tuple[int, ...] = ()  # at which restarts resumed, in order
    from_ns: int = 0  # its bound: time outside it is not charged
    to_ns: int = 1 << 61


@dataclass
class LifeRow:
    """Rows up to step `last`, from the step after the row before it on; ns by state before the steps and inside them."""

    first: int
    last: int
    gap: Counter
    inside: Counter


@dataclass
class Found:
    """What is charged to one life."""

    inside: Counter = field(default_factory=Counter)
    outside: Counter = field(default_factory=Counter)
    straggler_ns: int = 0
    bubble_ns: int = 0
    caused_ns: int = 0
    caused_in_group_ns: int = 0
    matched_ns: int = 0
    compared_steps: int = 0
    last_steps: int = 0
    lost_ns: int = 0
    lost_steps: int = 0
    kept_steps: int = 0
    work: float = 0.0  # kept steps, those that cross the bound in part
    losses: list[list[int]] = field(default_factory=list)  # steps and ns by each restart


@dataclass
class Known:
    """Lengths of a rank's steps and planned phases, each with the end of its row."""

    lengths: list[tuple[int, int]] = field(default_factory=list)
    phases: list[tuple[int, dict[str, int]]] = field(default_factory=list)

    def until(self, end_ns: int) -> Known:
        return Known(*([one for one in own if one[0] <= end_ns] for own in (self.lengths, self.phases)))

    def past(self) -> list[int]:
        return [ns for _, ns in self.lengths]

    def planned(self) -> Counter:
        return Counter({state: max([0, *(one[state] for _, one in self.phases)]) for state in PLANNED})


@dataclass
class Charged:
    """A row once it is charged, as its group compares it."""

    row: LifeRow
    states: Counter
    part: Counter  # what of it lies in the bound
    counts: bool  # whether it ends in the bound

    def own(self) -> int:
        return sum(
            ns for state, ns in self.states.items() if state not in ("communication", "compile", "stall")
        )

    def communication(self) -> int:
        return self.states["communication"]

    def length(self) -> int:
        return self.part.total()


def charge(lives: list[Life], least_ns: int) -> list[Found]:
    """Lives of a rank come in the order of their starts."""
    known: dict[int, Known] = {}
    found = [Found(losses=[[0, 0] for _ in life.points]) for life in lives]
    charged: list[list[Charged]] = []
    for life, into in zip(lives, found, strict=True):
        known[life.rank] = known.get(life.rank, Known()).until(life.start_ns)
        charged.append(charge_life(life, into, known[life.rank], least_ns))
    for group in {life.group for life in lives}:
        members = [at for at, life in enumerate(lives) if life.group == group]
        compare_rows([(lives[at].rank, charged[at], found[at]) for at in members])
    return found


def charge_life(life: Life, into: Found, known: Known, least_ns: int) -> list[Charged]:
    rows, now = [], life.start_ns
    for at, row in enumerate(life.rows):
        gap, inside = Counter(row.gap), Counter(row.inside)
        end_ns, past, planned = now + gap.total() + inside.total(), known.past(), known.planned()
        is_single, limit = row.first == row.last, threshold(past, least_ns)
        for states in (gap, inside):
            if is_single:
                limit_planned(states, planned, limit)
        known.phases += [(end_ns, {state: states[state] for state in PLANNED}) for states in (gap, inside)]
        if at == 0:
            gap = beginning(gap, is_single)
        else:
            gap["unattributed"] += gap.pop("productive", 0)
            if is_single:
                gap = stalled(gap, limit)
        into.outside.update(in_part(gap, bounded(life, now, now + gap.total())))
        began, now = now + gap.total(), now + gap.total() + inside.total()
        part_ns = bounded(life, began, now)
        counts = now <= life.to_ns and (now > life.from_ns or began == now == life.from_ns)
        share = part_ns / (now - began) if now > began else 1.0 * counts
        if life.limit is not None and row.last > life.limit:
            if is_single and at:
                known.lengths.append((end_ns, inside.total()))
            inside = stalled(inside, limit) if is_single else inside
            into.inside.update(lost(life, row, inside, part_ns, counts, into))
            into.work += share * (row.last - row.first + 1 - beyond(life, row))
            continue
        if at == 0 and is_single:
            inside = compiled(inside, life.rows, limit)
        elif is_single:
            known.lengths.append((end_ns, inside.total()))
            inside = stalled(inside, limit)
        own = Charged(row, inside, in_part(inside, part_ns), bool(counts))
        into.inside.update(own.part)
        into.kept_steps += counts * (row.last - row.first + 1)
        into.work += share * (row.last - row.first + 1)
        rows.append(own)
    return rows


def bounded(life: Life, from_ns: int, to_ns: int) -> int:
    return max(0, min(to_ns, life.to_ns) - max(from_ns, life.from_ns))


def in_part(states: Counter, part_ns: int) -> Counter:
    """Cut in proportion; the largest takes the rest of the division."""
    whole = states.total() or 1
    part = Counter({state: ns * part_ns // whole for state, ns in states.items()})
    order = list(ROW_ORDER)
    largest = max(order, key=lambda state: (states[state], -order.index(state)))
    part[largest] += part_ns - part.total()
    return part


def beyond(life: Life, row: LifeRow) -> int:
    assert life.limit is not None
    return row.last - max(life.limit, row.first - 1)


def lost(life: Life, row: LifeRow, inside: Counter, part_ns: int, counts: bool, into: Found) -> Counter:
    """Count what is beyond the limit; returns the part of a row of several steps that is not."""
    count, over = row.last - row.first + 1, beyond(life, row)
    kept_ns = part_ns * (count - over) // count
    into.kept_steps += counts * (count - over)
    into.lost_steps += counts * over
    into.lost_ns += part_ns - kept_ns
    for at, point in enumerate(life.points):
        if point < row.last:
            into.losses[at][0] += counts * over
            into.losses[at][1] += part_ns - kept_ns
            break
    return in_part(inside, kept_ns)


def threshold(past: list[int], least_ns: int) -> int:
    """Of the steps that came before."""
    if not past:
        return max(least_ns, 30 * MINUTE)
    recent = sorted(past[-1024:])
    if len(recent) < 8:
        return max(least_ns, 10 * recent[-1])
    return max(least_ns, 10 * recent[99 * (len(recent) - 1) // 100])


def limit_planned(states: Counter, planned: Counter, limit: int) -> None:
    for state in PLANNED:
        most = max(30 * MINUTE, 10 * planned[state], limit)
        if states[state] > most:
            states["stall"] += states[state] - most
            states[state] = most


def beginning(gap: Counter, is_single: bool) -> Counter:
    moved = Counter()
    for state, ns in gap.items():
        if is_single:
            moved[state if state in STAYS_BEFORE_STEPS else "startup"] += ns
        else:
            moved["startup" if state in ("unattributed", "productive") else state] += ns
    return moved


def stalled(states: Counter, limit: int) -> Counter:
    unplanned = sum(ns for state, ns in states.items() if state not in PLANNED)
    if unplanned <= limit:
        return states
    return Counter({"stall": unplanned, **{s: ns for s, ns in states.items() if s in PLANNED}})


def compiled(first: Counter, rows: list[LifeRow], limit: int) -> Counter:
    """The first step less its excess over the median of the next 15, in compute and unattributed time."""
    others = [row.inside for row in rows[1:] if row.first == row.last][:15]
    if others:
        works = [other["productive"] + other["unattributed"] for other in others]
        excess = first.total() - middle([other.total() for other in others])
        excess = min(excess, first["productive"] + first["unattributed"] - middle(works))
        for state in ("productive", "unattributed"):
            moved = max(0, min(excess, first[state]))
            first[state] -= moved
            first["compile"] += moved
            excess -= moved
    return stalled(first, limit)


def middle(values: list[int]) -> int:
    ordered = sorted(values)
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return (low + high) // 2


def compare_rows(members: list[tuple[int, list[Charged], Found]]) -> None:
    """Compare what all did from one step that all reached to the next."""
    members = sorted(members, key=lambda member: member[0])
    if len(members) < 2:
        return
    ends = sorted({one.row.last for _, rows, _ in members for one in rows})
    before = -1
    for end in ends:
        here = [m for m in members if m[1] and m[1][0].row.first <= end <= m[1][-1].row.last]
        if not all(any(one.row.last == end for one in rows) for _, rows, _ in here):
            continue
        spans = []
        for rank, rows, found in here:
            own = [one for one in rows if before < one.row.last <= end]
            spans.append((own[0].row.first, rank, own, found))
        first = min(span[0] for span in spans)
        compare_spans([span[1:] for span in spans if span[0] == first])
        before = end


def compare_spans(spans: list[tuple[int, list[Charged], Found]]) -> None:
    if len(spans) < 2:
        return
    waits = {rank: sum(one.communication() for one in own) for rank, own, _ in spans}
    least = min(waits.values())
    last = [rank for rank, _, _ in spans if waits[rank] == least]
    moved = {rank: within(own, waits[rank] - least) for rank, own, _ in spans}
    waited = sum(moved.values())
    is_single = all(len(own) == 1 and own[0].row.first == own[0].row.last for _, own, _ in spans)
    is_single &= all(one.counts for _, own, _ in spans for one in own)
    for rank, own, found in spans:
        found.straggler_ns += moved[rank]
        found.matched_ns += sum(one.length() for one in own)
        found.compared_steps += is_single
        if rank in last:
            part = waited // len(last) + (last.index(rank) < waited % len(last))
            found.caused_ns += part
            found.caused_in_group_ns += part
            found.last_steps += is_single and len(last) < len(spans)


def within(own: list[Charged], ns: int) -> int:
    """Of communication of a sum of rows that is moved, the part in the bound."""
    whole = sum(one.communication() for one in own)
    return ns and ns * sum(one.part["communication"] for one in own) // whole
