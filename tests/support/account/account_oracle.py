"""The account by brute force, written from docs/definitions.md and sharing no code with the account.

It takes the lives of rank processes second by second, not as rows; only whole, well-formed histories.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from fractions import Fraction
from statistics import median_low

Parts = list[tuple[str, int]]  # (phase, ns) in the order they passed

STATE_OF = {
    "none": "unattributed",
    "forward": "productive",
    "backward": "productive",
    "optimizer": "productive",
    **{p: p for p in ("loader", "h2d", "communication", "checkpoint", "restore", "evaluation", "compile")},
    "rollout": "rollout",
}
PLANNED = {"checkpoint", "evaluation", "rollout", "restore", "compile"}
FIRST_OTHERS = 15  # steps that a first one is compared with


@dataclass
class Step:
    index: int
    parts: Parts
    gap: Parts = field(default_factory=list)  # between the step before and this one; unused for the first


@dataclass
class Life:
    """One rank process: startup, steps, and a tail that is no completed step; it ended in `end` or is alive."""

    rank: int
    attempt: int
    start_ns: int
    startup: Parts
    declared: int | None
    steps: list[Step]
    tail: Parts
    silence_ns: int  # in the last phase, from the last boundary to the end or the last look
    end: str  # killed, failed, finished, alive
    saves: list[tuple[int, bool]] = field(default_factory=list)  # (step, committed)
    group: str = ""
    devices: int = 1

    def end_ns(self) -> int:
        inside = sum(ns for step in self.steps[:1] for _, ns in step.parts)
        inside += sum(ns for step in self.steps[1:] for _, ns in step.gap + step.parts)
        return self.start_ns + sum(ns for _, ns in self.startup + self.tail) + inside + self.silence_ns


@dataclass
class Found:
    """The oracle's account. `states` by rank, in ns of wall time."""

    status: str
    end_ns: int
    states: dict[int, Counter]
    kept: Counter
    lost: Counter
    kept_ns: Counter
    restarts: dict[int, Counter]
    points: dict[int, int | None]
    length_ns: int
    even_ns: Fraction


class Rules:
    """What decides on a step, from what its rank did before: see docs/definitions.md."""

    def __init__(self, lives: list[Life], least_ns: int):
        self.lives, self.least_ns = lives, least_ns
        self.of_run = self._threshold_of_run()

    def _threshold_of_run(self) -> int:
        """The longest of the ranks' thresholds at the end."""
        newest = {life.rank: life for life in sorted(self.lives, key=lambda life: life.start_ns)}
        known = [(life, len(life.steps)) for life in newest.values()]
        found = [self.threshold(*one) for one in known if self._lengths_before(*one)]
        return max(found, default=self.least_ns)

    def threshold(self, life: Life, steps: int) -> int:
        """From how long on a wait is a stall after so many steps of a life.

        Ten times the lower 99th percentile of the last 1024 lengths; of fewer than eight, the longest.
        """
        known = self._lengths_before(life, steps)
        if not known:
            return max(self.least_ns, 1800 * 10**9)
        recent = sorted(known[-1024:])
        usual = recent[-1] if len(recent) < 8 else recent[99 * (len(recent) - 1) // 100]
        return max(self.least_ns, 10 * usual)

    def _lengths_before(self, life: Life, steps: int) -> list[int]:
        """Lengths of the steps of a rank before this life's step of this place, each life's first left out."""
        earlier = sorted((one for one in self.lives if one.rank == life.rank), key=lambda one: one.start_ns)
        earlier = earlier[: earlier.index(life)]
        made = [step for one in earlier for step in one.steps[1:]] + life.steps[1:steps]
        return [sum(ns for _, ns in step.parts) for step in made]

    def is_provisional(self, life: Life) -> bool:
        """Whether it is not known yet how much of its first step was compiling."""
        return life.end == "alive" and 0 < len(life.steps) <= FIRST_OTHERS

    def is_awaited(self, life: Life, index: int) -> bool:
        """Whether a step cannot be compared yet, since this life may still make it."""
        return life.end == "alive" and (self.is_provisional(life) or life.steps[-1].index < index)


def oracle(lives: list[Life], now_ns: int, least_ns: int) -> Found:
    numbers = sorted({life.attempt for life in lives})
    points = resume_points(lives, numbers)
    status, end_ns = outcome(lives, numbers, now_ns)
    safe = safe_point(lives, numbers, points, numbers[-1]) if status == "failed" else None
    rules = Rules(lives, least_ns)
    limit = rules.of_run
    start_ns = min(life.start_ns for life in lives)
    ranks = range(1 + max(life.rank for life in lives))
    found = Found(
        status, end_ns, {r: Counter() for r in ranks}, Counter(), Counter(), Counter(), {}, points, 0, 0
    )
    found.restarts = {n: Counter() for n in numbers[1:]}
    settled = {id(life): settled_steps(life, rules) for life in lives}
    split_communication(rules, settled, points, safe, found)
    for rank in ranks:
        own = sorted((life for life in lives if life.rank == rank), key=lambda life: life.start_ns)
        at, before = start_ns, "unobserved"
        for life in own:
            begun = min(peer.start_ns for peer in lives if peer.attempt == life.attempt)
            gone = max(begun - at, 0) if life.start_ns - begun <= limit else life.start_ns - at
            gone = min(gone, life.start_ns - at)
            found.states[rank][before] += gone
            found.states[rank]["startup"] += life.start_ns - at - gone
            if life.attempt in found.restarts and before == "down":
                found.restarts[life.attempt]["down_ns"] += gone * life.devices
            add_life(life, rules, settled[id(life)], points, safe, end_ns, found)
            at, before = (end_ns if life.end == "alive" else life.end_ns()), "down"
        last = max(end_ns if life.end == "alive" else life.end_ns() for life in lives)
        early = last - at if own and own[-1].end == "finished" and last - at <= limit else 0
        found.states[rank]["unattributed"] += early
        found.states[rank][before] += end_ns - at - early
    return found


def resume_points(lives, numbers) -> dict[int, int | None]:
    points: dict[int, int | None] = {}
    for number in numbers:
        peers = [life for life in lives if life.attempt == number]
        declared = [life.declared for life in peers if life.declared is not None]
        first = [life.steps[0].index - 1 for life in peers if life.steps]
        if declared:
            points[number] = min(declared)
        elif first:
            points[number] = min(first)
        else:
            points[number] = safe_point(lives, numbers, points, number - 1)
    return points


def safe_point(lives, numbers, points, last: int) -> int | None:
    """The last step whose work is on disk once attempt `last` is over; None without any checkpoint."""
    tried, safe = False, -1
    for number in numbers:
        if number > last:
            break
        if points[number] is not None:
            safe = min(safe, points[number])
        for life in lives:
            for step, committed in life.saves:
                if life.attempt == number:
                    tried = True
                    safe = max(safe, step) if committed else safe
    return safe if tried else None


def outcome(lives, numbers, now_ns) -> tuple[str, int]:
    if any(life.end == "alive" for life in lives):
        return "running", now_ns
    finished = all(life.end == "finished" for life in lives if life.attempt == numbers[-1])
    return "finished" if finished else "failed", max(life.end_ns() for life in lives)


def by_state(parts: Parts) -> Counter:
    states = Counter()
    for phase, ns in parts:
        states[STATE_OF[phase]] += ns
    return states


def settled_steps(life: Life, rules: Rules) -> list[Counter]:
    """Each step's time by state, with the first step's excess and stalls, before it is known who is lost."""
    steps = [by_state(step.parts) for step in life.steps]
    limits = [rules.threshold(life, at) for at in range(len(steps))]
    others = steps[1 : 1 + FIRST_OTHERS]
    if rules.is_provisional(life):
        steps[0]["compile"] += steps[0].pop("productive", 0) + steps[0].pop("unattributed", 0)
        limits[0] = steps[0].total()
    elif others:
        first = steps[0]
        length = middle([s.total() for s in others])
        work = middle([s["productive"] + s["unattributed"] for s in others])
        excess = min(first.total() - length, first["productive"] + first["unattributed"] - work)
        for state in ("productive", "unattributed"):
            moved = max(0, min(excess, first[state]))
            first[state] -= moved
            first["compile"] += moved
            excess -= moved
    return [stalled(step, limit) for step, limit in zip(steps, limits, strict=True)]


def stalled(states: Counter, limit: int) -> Counter:
    if sum(ns for state, ns in states.items() if state not in PLANNED) <= limit:
        return states
    moved = Counter({state: ns for state, ns in states.items() if state in PLANNED})
    moved["stall"] += sum(ns for state, ns in states.items() if state not in PLANNED)
    return moved


def middle(values: list[int]) -> int:
    low, high = median_low(values), -median_low([-v for v in values])
    return (low + high) // 2


def is_lost(life: Life, index: int, points, safe) -> bool:
    if safe is not None and index > safe:
        return True
    return any(n > life.attempt and p is not None and index > p for n, p in points.items())


def split_communication(rules: Rules, settled, points, safe, found: Found) -> None:
    together = defaultdict(list)
    for life in rules.lives:
        for step, states in zip(life.steps, settled[id(life)], strict=True):
            if not is_lost(life, step.index, points, safe):
                together[life.attempt, life.group, step.index].append(states)
    for (attempt, group, index), members in together.items():
        peers = [one for one in rules.lives if (one.attempt, one.group) == (attempt, group) and one.steps]
        if len(members) < 2 or any(rules.is_awaited(life, index) for life in peers):
            continue
        least = min(states["communication"] for states in members)
        own = [states.total() - states["communication"] for states in members]
        for states in members:
            found.length_ns += states.total()
            found.even_ns += Fraction(sum(own), len(own)) + least
            states["straggler"] += states["communication"] - least
            states["communication"] = least


def add_life(life: Life, rules: Rules, settled, points, safe, end_ns, found: Found) -> None:
    rank, into = life.rank, found.states[life.rank]
    for phase, ns in life.startup if life.steps else []:
        into[phase if phase in ("restore", "compile", "rollout") else "startup"] += ns
    for i, (step, states) in enumerate(zip(life.steps, settled, strict=True)):
        if i:
            gap = by_state(step.gap)
            gap["unattributed"] += gap.pop("productive", 0)
            into.update(stalled(gap, rules.threshold(life, i)))
        if is_lost(life, step.index, points, safe):
            into["lost"] += states.total()
            found.lost[rank] += 1
            charge(life, step.index, states.total(), points, found)
        else:
            into.update(states)
            found.kept[rank] += 1
            found.kept_ns[rank] += states.total() - states["compile"] - states["stall"]
    tail = tail_of(life, rules.threshold(life, len(life.steps)), end_ns)
    into.update(tail)
    if life.end == "alive" and life.steps and not tail["stall"]:
        found.kept_ns[rank] += tail.total()
    later = [n for n in found.restarts if n > life.attempt]
    if later:
        found.restarts[min(later)]["lost_ns"] += tail["lost"] * life.devices


def tail_of(life: Life, limit: int, end_ns: int) -> Counter:
    """What follows the last completed step; all there is, where there is none."""
    parts = life.tail if life.steps else life.startup + life.tail
    last = life.tail[-1][0] if life.tail else "none"
    silence_ns = life.silence_ns + (end_ns - life.end_ns() if life.end == "alive" else 0)
    tail = by_state([*parts, (last, silence_ns)])
    if not life.steps:
        named = Counter({s: tail[s] for s in ("restore", "compile", "rollout")})
        named["startup"] = tail.total() - named.total()
        return named
    hung = stalled(tail, limit)
    if hung["stall"]:
        return hung
    if life.end in ("killed", "failed"):
        return Counter(lost=tail.total())
    if life.end == "finished":
        tail["unattributed"] += tail.pop("productive", 0)
    return tail


def charge(life: Life, index: int, ns: int, points, found: Found) -> None:
    for number in sorted(found.restarts):
        if number > life.attempt and points[number] is not None and points[number] < index:
            found.restarts[number]["lost_steps"] += 1
            found.restarts[number]["lost_ns"] += ns * life.devices
            return
