"""How long a wait may be before it is a stall: max(60 s, 10 x the 99th percentile of step length).

The first step of each attempt is left out, since it compiles. With fewer than 100 steps per rank the 99th percentile
would be the longest step, which may itself be the stall; the median stands in for it then. Only lengths that matter to
the threshold are kept, in fp16 bins: memory is bounded and the relative error is at most 2^-11.

A planned phase excuses a stall up to 10 x the longest that the rank has shown of it so far, at least 30 min
(PlannedLimits).
"""

from __future__ import annotations

import struct
from bisect import bisect_left, insort
from dataclasses import dataclass, field

from goodput.account.states import INDEX, PLANNED
from goodput.defaults import STALL_SECONDS

_PACK, _UNPACK = struct.Struct("<e").pack, struct.Struct("<H").unpack
_SECONDS_MAX = 65_504.0
TIMES = 10
RESOLVED_STEPS = 100
# No step that an agent may report is as long.
THRESHOLD_NS_MAX = 1 << 62
PLANNED_LEAST_NS = 1800 * 10**9
PLANNED_TIMES = 10
# A shorter length changes no limit and exceeds none.
NOTED_NS = PLANNED_LEAST_NS // PLANNED_TIMES


class StepLengths:
    """Step lengths of a run. Adding commutes.

    Lengths of at most `least_ns` are counted but not kept.
    """

    def __init__(self, least_ns: int = 0):
        self.count = 0
        self._least_ns = least_ns
        self._bins: dict[int, list[int]] = {}  # [steps, sum of their ns]

    @classmethod
    def for_threshold(cls, least_seconds: float) -> StepLengths:
        """Without the lengths that cannot raise a threshold of at least `least_seconds`."""
        return cls(int(least_seconds * 1e9 / TIMES))

    def copy(self) -> StepLengths:
        other = StepLengths(self._least_ns)
        other.count, other._bins = self.count, {index: list(bin) for index, bin in self._bins.items()}
        return other

    def add(self, ns: int) -> None:
        self.count += 1
        if ns > self._least_ns:
            (index,) = _UNPACK(_PACK(min(ns / 1e9, _SECONDS_MAX)))
            found = self._bins.setdefault(index, [0, 0])
            found[0] += 1
            found[1] += ns

    def add_rows(self, rows, after: int = 0) -> None:
        """Add rows of one attempt, in order, with numbers above `after`.

        The attempt's first row, and those that stand for several steps, are left out.
        """
        number = after or None
        for row in rows:
            if number is not None and row.number == number + 1:
                self.add(row.end_ns - row.start_ns)
            number = row.number

    def add_ns(self, lengths) -> None:
        """Add many lengths, a NumPy array of ns."""
        counted = lengths[lengths > self._least_ns].tolist()
        self.count += len(lengths) - len(counted)
        for ns in counted:
            self.add(ns)

    def lower_ns(self, percent: int) -> int:
        """The lower percentile in ns: the mean of its bin, so exact where the bin's steps are equal.

        0 if the percentile is among the lengths that are not kept.
        """
        left = self.count - (percent * (self.count - 1)) // 100  # so many are as long or longer
        for index in sorted(self._bins, reverse=True):
            steps, ns = self._bins[index]
            left -= steps
            if left <= 0:
                return ns // steps
        return 0

    def threshold_ns(self, least_seconds: float = STALL_SECONDS, ranks: int = 1) -> int:
        """The threshold in ns, for steps of `ranks` ranks together."""
        usual = self.lower_ns(99 if self.count >= RESOLVED_STEPS * ranks else 50)
        return min(max(int(least_seconds * 1e9), TIMES * usual), THRESHOLD_NS_MAX)


@dataclass
class PlannedLimits:
    """The longest planned phases of a run's ranks: (end_ns, ns) by (rank, state), growing in both.

    Over all attempts of a rank, in order of time; time beyond the limit is no part of a length. Only lengths that can raise
    a limit are kept, and of those only ever longer ones, so memory is a few numbers per rank.
    """

    longest: dict[tuple[int, int], list[tuple[int, int]]] = field(default_factory=dict)

    def copy(self) -> PlannedLimits:
        return PlannedLimits({key: list(lengths) for key, lengths in self.longest.items()})

    def limit_ns(self, rank: int, state: int, before_ns: int) -> int:
        """The limit of a phase of this state that began at `before_ns`."""
        lengths = self.longest.get((rank, state), [])
        at = bisect_left(lengths, (before_ns + 1,))
        return max(PLANNED_LEAST_NS, PLANNED_TIMES * lengths[at - 1][1]) if at else PLANNED_LEAST_NS

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
