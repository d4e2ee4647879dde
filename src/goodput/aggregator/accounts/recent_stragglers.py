"""The slow rank and stage of the last ten minutes, by the account's own rule.

An alert that used the sums of a run's whole life would name a rank hours after it became slow in a run that is days
old. The sums of some minutes ago are kept, about 600 bytes per rank each, and what was added since is judged.
"""

from __future__ import annotations

from goodput.account.straggler import Straggler

WINDOW_NS = 600 * 10**9
EVERY_NS = 300 * 10**9
# In fewer steps one batch that was hard to load makes a rank of hundreds slower than the median.
STEPS_MIN = 8


class RecentStragglers:
    """One per aggregator; `of` is called at each scrape."""

    def __init__(self) -> None:
        self._before: dict[str, list[tuple[int, Straggler]]] = {}

    def of(self, run: str, now_ns: int, sums: Straggler) -> Straggler | None:
        """The sums of the last ten to fifteen minutes; None where there are few steps, as after a start.

        Earlier sums that have steps that were lost since are left out, so the time is shorter then.
        """
        before, found = self._before.setdefault(run, []), None
        while before and (found := sums.since_sums(before[0][1])) is None:
            del before[0]
        if not before or abs(now_ns - before[-1][0]) >= EVERY_NS:
            before.append((now_ns, sums.compact()))
        while len(before) > 1 and now_ns - before[1][0] >= WINDOW_NS:
            del before[0]
        return found if found is not None and _is_enough(found) else None

    def keep(self, runs) -> None:
        """Forget all other runs."""
        self._before = {run: self._before[run] for run in runs if run in self._before}


def _is_enough(found: Straggler) -> bool:
    """Whether half of the ranks that made steps made STEPS_MIN."""
    steps = sorted(count for count in found.steps.values() if count > 0)
    return bool(steps) and steps[len(steps) // 2] >= STEPS_MIN
