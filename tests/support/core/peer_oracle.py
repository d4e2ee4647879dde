"""Ranks of a group compared step by step, by brute force from docs/definitions.md, sharing no code with the core.

It covers groups, pipelines and the stretches in which a rank is slow, for ranks that all make the same single steps.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from statistics import median_low

from support.core.onset_rules import Onset, note_all


@dataclass
class Peer:
    """A rank: per step its own time and its communication in ns, and what comparing them comes to."""

    rank: int
    stage: int
    unit: int
    steps: list[tuple[int, int]]
    sums: Counter = field(default_factory=Counter)
    onset: Onset = field(default_factory=Onset)


@dataclass
class Shape:
    """`stages` is 0 for a group that is no pipeline, `microbatches` 0 where they are not known."""

    stages: int = 0
    microbatches: int = 0

    def held_up(self, late_ns: int) -> int:
        late_ns = max(late_ns, 0)
        return late_ns * (self.microbatches - 1) // self.microbatches if self.microbatches else late_ns

    def bubble(self, step_ns: int) -> int:
        if not self.microbatches:
            return 0
        return max(step_ns, 0) * (self.stages - 1) // (self.microbatches + self.stages - 1)

    def kept(self, waited: int, communication: int, own: int) -> int:
        if not self.microbatches:
            return waited
        return min(waited, max(communication - own * (self.stages - 1) // self.microbatches, waited // 2))


def compare(peers: list[Peer], shape: Shape) -> dict[int, list[int]]:
    """Add to each peer's sums; returns waiting for stages in ns, and in how many steps there was some."""
    stages: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    for step in range(len(peers[0].steps)):
        now = {peer.rank: peer.steps[step] for peer in peers}
        if shape.stages:
            compare_pipeline(peers, now, shape, stages)
        else:
            compare_group(peers, now)
        for peer in peers:
            peer.sums["compared_steps"] += 1
        if step:
            for stage in {peer.stage for peer in peers} if shape.stages else [None]:
                own = [peer for peer in peers if stage in (None, peer.stage)]
                note_all([peer.onset for peer in own], step, [now[peer.rank][0] for peer in own])
    return stages


def divide(waited: int, last: list[Peer], name: str) -> None:
    """The first ones take the rest of the division."""
    for at, peer in enumerate(last):
        peer.sums[name] += waited // len(last) + (at < waited % len(last))


def compare_group(peers: list[Peer], now: dict[int, tuple[int, int]]) -> None:
    least = min(waits for _, waits in now.values())
    last = [peer for peer in peers if now[peer.rank][1] == least]
    waited = sum(waits - least for _, waits in now.values())
    for peer in peers:
        peer.sums["straggler_ns"] += now[peer.rank][1] - least
    divide(waited, last, "caused_ns")
    divide(waited, last, "caused_in_group_ns")
    for peer in last if waited else []:
        peer.sums["last_steps"] += 1


def compare_pipeline(peers: list[Peer], now, shape: Shape, stages: dict[int, list[int]]) -> None:
    units, staged = defaultdict(list), defaultdict(list)
    for peer in peers:
        units[peer.stage, peer.unit].append(peer)
        staged[peer.stage].append(peer)
    own, waits = ({rank: pair[at] for rank, pair in now.items()} for at in (0, 1))
    least = {unit: min(waits[peer.rank] for peer in ranks) for unit, ranks in units.items()}
    last = {unit: [p for p in ranks if waits[p.rank] == least[unit]] for unit, ranks in units.items()}
    longest = {unit: max(own[peer.rank] for peer in ranks) for unit, ranks in last.items()}
    usual = {stage: median_low(own[peer.rank] for peer in ranks) for stage, ranks in staged.items()}
    slow, most = max(usual.values()), max(longest.values())
    for_rank = {unit: min(max(most - max(slow, longest[unit]), 0), least[unit]) for unit in units}
    for_stage = {u: min(shape.held_up(slow - longest[u]), least[u] - for_rank[u]) for u in units}
    total = sum(
        waits[peer.rank] - least[unit] + for_rank[unit] + for_stage[unit]
        for unit, ranks in units.items()
        for peer in ranks
    )
    kept = shape.kept(total, sum(waits.values()), sum(own.values()))
    caused, counted = Counter(), set()
    for unit, ranks in units.items():
        inside = covered = 0
        for peer in ranks:
            beyond = waits[peer.rank] - least[unit]
            late = 0 if usual[unit[0]] == slow else min(slow, longest[unit]) - own[peer.rank]
            hidden = min(shape.held_up(late), beyond)
            parts = [beyond - hidden, hidden, for_rank[unit], for_stage[unit]]
            if kept < total:
                parts = [ns * kept // total for ns in parts]
            bubble = shape.bubble(waits[peer.rank] + own[peer.rank] - kept // len(peers))
            peer.sums["straggler_ns"] += sum(parts)
            peer.sums["bubble_ns"] += min(bubble, waits[peer.rank] - sum(parts))
            inside, covered = inside + parts[0], covered + parts[1]
            caused["rank"] += parts[2]
            caused["stage"] += parts[1] + parts[3]
        divide(inside, last[unit], "caused_ns")
        counted |= {peer.rank for peer in last[unit]} if inside else set()
        if len(ranks) == len(staged[unit[0]]):
            divide(inside + covered, last[unit], "caused_in_group_ns")
    for ranks in staged.values():
        if len({peer.unit for peer in ranks}) > 1:
            latest = max(own[peer.rank] for peer in ranks)
            lack = [min(latest - own[peer.rank], waits[peer.rank]) * kept // max(total, 1) for peer in ranks]
            by_unit = sorted(ranks, key=lambda peer: (peer.unit, peer.rank))
            divide(sum(lack), [peer for peer in by_unit if own[peer.rank] == latest], "caused_in_group_ns")
    waited_for = [peer for unit in units if longest[unit] == most for peer in last[unit]]
    divide(caused["rank"], sorted(waited_for, key=lambda peer: peer.rank), "caused_ns")
    counted |= {peer.rank for peer in waited_for} if any(for_rank.values()) else set()
    for peer in peers:
        peer.sums["last_steps"] += peer.rank in counted
    slowest = sorted(stage for stage, ns in usual.items() if ns == slow)
    for at, stage in enumerate(slowest):
        stages[stage][0] += caused["stage"] // len(slowest) + (at < caused["stage"] % len(slowest))
        stages[stage][1] += caused["stage"] > 0
