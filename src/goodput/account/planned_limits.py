"""How long a planned phase excuses a stall: 10 x the longest that the rank has shown of it so far, at least 30 min.

Lengths are per rank and state, over all its attempts, in order of time; time beyond the limit is no part of them. Only
lengths that can raise a limit are kept, and of those only ever longer ones, so memory is a few numbers per rank.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

from goodput.account.states import INDEX, PLANNED

LEAST_NS = 1800 * 10**9
TIMES = 10
# A shorter length changes no limit and exceeds none.
NOTED_NS = LEAST_NS // TIMES


@dataclass
class PlannedLimits:
    """The longest planned phases of a run's ranks: (end_ns, ns) by (rank, state), growing in both."""

    longest: dict[tuple[int, int], list[tuple[int, int]]] = field(default_factory=dict)

    def copy(self) -> PlannedLimits:
        return PlannedLimits({key: list(lengths) for key, lengths in self.longest.items()})

    def limit_ns(self, rank: int, state: int, before_ns: int) -> int:
        """The limit of a phase of this state that began at `before_ns`."""
        lengths = self.longest.get((rank, state), [])
        at = bisect_left(lengths, (before_ns + 1,))
        return max(LEAST_NS, TIMES * lengths[at - 1][1]) if at else LEAST_NS

    def of_state(self, rank: int, state: str, before_ns: int) -> int:
        """The limit of a rank in this state; outside planned states, the largest of them."""
        states = [state] if state in PLANNED else PLANNED
        return max(self.limit_ns(rank, INDEX[name], before_ns) for name in states)

    def note(self, rank: int, state: int, end_ns: int, ns: int) -> None:
        """Note a completed phase of this length, above NOTED_NS."""
        lengths = self.longest.setdefault((rank, state), [])
        at = bisect_left(lengths, (end_ns + 1,))
        if not at or lengths[at - 1][1] < ns:
            insort(lengths, (end_ns, ns))
            lengths[at + 1 :] = [later for later in lengths[at + 1 :] if later[1] > ns]
