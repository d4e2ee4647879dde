"""The slow link of each run for its series, judged anew every EVERY_NS and for at most RANKS_MAX ranks.

The verdict takes some 40 us a rank, in one piece, on the thread that answers pushes. The page and the API judge runs of
any size, in a thread.
"""

from __future__ import annotations

from collections.abc import Iterable

from goodput.account.collectives.slow_link import SlowLink, slow_link
from goodput.aggregator.ingest.connections import packed_connections, unpacked
from goodput.aggregator.ingest.store import Process

EVERY_NS = 10 * 10**9  # as agents report connections
RANKS_MAX = 1024


class RecentLinks:
    """One per aggregator; `of` is called at each scrape."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[int, SlowLink | None]] = {}

    def of(self, run: str, now_ns: int, processes: Iterable[Process]) -> SlowLink | None:
        """The slow link of a running run, from the connections of its newest processes."""
        at_ns, found = self._found.get(run, (None, None))
        if at_ns is not None and abs(now_ns - at_ns) < EVERY_NS:
            return found
        packed = packed_connections(processes)
        found = slow_link(unpacked(packed)) if len(packed) <= RANKS_MAX else None
        self._found[run] = now_ns, found
        return found

    def keep(self, runs) -> None:
        """Forget all other runs."""
        self._found = {run: self._found[run] for run in runs if run in self._found}
