"""When scrapes are expected: those of one kind come regularly, so series need only be rendered shortly before each.

All times are seconds of the monotonic clock.
"""

from __future__ import annotations

from collections.abc import Hashable
from itertools import pairwise
from math import ceil

# So long after its last scrape, or after so many that did not come, a scraper has gone.
GONE_SECONDS, GONE_PERIODS = 60.0, 3
SCRAPERS_MAX = 16


class ScrapeTimes:
    def __init__(self):
        # Of each scraper the last three, by what it asks for; the one that came last at the end.
        self._times: dict[Hashable, tuple[float, ...]] = {}

    def add(self, scraper: Hashable, now: float) -> None:
        self._times[scraper] = (*self._times.pop(scraper, ()), now)[-3:]
        if len(self._times) > SCRAPERS_MAX:
            del self._times[next(iter(self._times))]

    def next_due(self, now: float, due: float, sooner_seconds: float, lead_seconds: float) -> float | None:
        """When to begin what is due and takes `lead_seconds`, so that it is done at a scrape: at most so much sooner, and
        where scrapes come as seldom as it is done; else when it is due. None if there is no scraper."""
        found: list[float] = []
        for times in self._times.values():
            # The shorter one of two, as where two scrapers ask for the same.
            gaps = [later - before for before, later in pairwise(times)]
            period = min(gaps) if len(gaps) == 2 else 0.0
            if now - times[-1] > max(GONE_SECONDS, GONE_PERIODS * period):
                continue
            if period < 2 * sooner_seconds:
                found.append(due)
                continue
            ahead = due - sooner_seconds + lead_seconds - times[-1]
            found.append(times[-1] + max(ceil(ahead / period), 1) * period - lead_seconds)
        return min(found, default=None)
