"""How long a rank may spend in a planned phase before it is a stall: 10 x the longest that it has shown, at least 30 min.

The core has these limits, and the threshold of all other waits (see core.h); here they are for the verdict on a run that hangs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from goodput.account.states import PLANNED

# A stall is longer than so many usual steps.
TIMES = 10
PLANNED_LEAST_NS = 1800 * 10**9
PLANNED_TIMES = 10


@dataclass
class PlannedLimits:
    """The longest planned phase of a run's ranks, in ns, by rank and state. One without an entry has shown none."""

    longest: dict[tuple[int, str], int] = field(default_factory=dict)

    def limit_ns(self, rank: int, state: str) -> int:
        """How long the rank may be in a planned state."""
        return max(PLANNED_LEAST_NS, PLANNED_TIMES * self.longest.get((rank, state), 0))

    def of_state(self, rank: int, state: str) -> int:
        """The same; outside planned states, the largest of all."""
        return max(self.limit_ns(rank, name) for name in ([state] if state in PLANNED else PLANNED))
