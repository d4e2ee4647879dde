"""Which ranks' sampled stacks are kept: of each rank those of its newest process, of so many ranks of a run and in all.

A rank's samples take some 2 KiB.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from goodput.account import Attempt
from goodput.account.sampled_stacks import RANKS_MAX
from goodput.wire import schema
from goodput.wire.sampled_stacks import NO_STACKS, SampledStacks

RANKS_IN_ALL_MAX = 1 << 14


class SampledRanks:
    """`dropped` counts ranks whose samples were not kept, in each report that had some."""

    def __init__(self) -> None:
        self._holders: dict[tuple[str, int], Attempt] = {}
        self._of_run: Counter[str] = Counter()
        self.dropped = 0

    def used_share(self) -> float:
        """The used part of the bound of all runs."""
        return len(self._holders) / RANKS_IN_ALL_MAX

    def take(self, run: str, attempt: Attempt, stacks: schema.SampledStacks | None) -> None:
        """Set the attempt's samples, which are cumulative, and clear those of the rank's earlier attempts."""
        if stacks is None:
            return
        holder = self._holders.get((run, attempt.rank))
        if holder is None:
            if self._of_run[run] >= RANKS_MAX or len(self._holders) >= RANKS_IN_ALL_MAX:
                self.dropped += 1
                return
            self._of_run[run] += 1
        elif holder is not attempt:
            if (attempt.start_ns, attempt.attempt) < (holder.start_ns, holder.attempt):
                return
            holder.stacks = NO_STACKS
        self._holders[run, attempt.rank] = attempt
        attempt.stacks = SampledStacks(stacks.places, stacks.samples, stacks.reason)

    def forget(self, runs: Collection[str]) -> None:
        """Give up what these runs hold of the bounds."""
        self._holders = {key: one for key, one in self._holders.items() if key[0] not in runs}
        for run in runs:
            del self._of_run[run]


def reported(attempt: Attempt) -> schema.SampledStacks | None:
    """What is kept of an attempt, as a report has it."""
    return None if attempt.stacks is NO_STACKS else schema.SampledStacks(*attempt.stacks)
