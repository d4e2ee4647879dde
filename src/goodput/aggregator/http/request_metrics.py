"""Request counters of the aggregator: by route and status, durations, refusals by reason.

Routes and statuses come from fixed lists, so clients cannot create series. Costs two microseconds per request.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from itertools import accumulate

from goodput.aggregator.http import limits
from goodput.histograms.native_histogram import NativeHistogram, bucket_of
from goodput.metrics import Families

SECONDS_MIN = 1e-6
BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
ROUTES: tuple[str, ...] = (
    "ingest", "runs", "run", "end", "health", "access", "schema", "metrics", "healthz", "readyz", "page", "login", "other",
)  # fmt: skip
REFUSALS: tuple[str, ...] = (
    "body", "large", "encoding", "head", "slow", "busy", "memory", "starting", "host", "origin", "throttled", "quota",
    "sessions", "malformed",
)  # fmt: skip
FAILURES: tuple[str, ...] = "missing", "malformed", "unknown", "expired", "session", "scope"
STATUSES = {200, 206, 303, 304, 400, 401, 403, 404, 405, 413, 415, 416, 421, 422, 429, 431, 499, 500, 503}
CLIENT_DISCONNECTED = 499


class RequestMetrics:
    """`refused` and `failures` count by reason; `connections` is the number of open ones, of `connections_max`.

    `body_bytes` are those of all reports that are being received or worked on.
    """

    def __init__(self):
        self.counts: Counter[tuple[str, int]] = Counter()
        self.refused: Counter[str] = Counter(dict.fromkeys(REFUSALS, 0))
        self.failures: Counter[str] = Counter(dict.fromkeys(FAILURES, 0))
        self.connections, self.connections_max = 0, limits.CONNECTIONS_MAX
        self.body_bytes = 0
        self._buckets = {route: [0] * (len(BOUNDS) + 1) for route in ROUTES}
        self._native: dict[str, Counter[int]] = {route: Counter() for route in ROUTES}
        self._seconds = dict.fromkeys(ROUTES, 0.0)

    def observe(self, route: str, status: int, seconds: float) -> None:
        self.counts[route, status if status in STATUSES else status // 100] += 1
        self._buckets[route][bisect_left(BOUNDS, seconds)] += 1
        # Without a zero bucket.
        self._native[route][bucket_of(max(seconds, SECONDS_MIN))] += 1
        self._seconds[route] += seconds

    def collect(self, families: Families) -> None:
        for (route, status), count in sorted(self.counts.items()):
            code = str(status) if status > 9 else f"{status}xx"
            families.add("goodput_aggregator_requests_total", {"route": route, "code": code}, count)
        name = "goodput_aggregator_request_seconds"
        for route, counts in self._buckets.items():
            if any(counts):
                buckets = list(zip((*map(str, BOUNDS), "+Inf"), accumulate(counts), strict=True))
                native = NativeHistogram(list(self._native[route].items()), self._seconds[route])
                families.add_histogram(name, {"route": route}, buckets, self._seconds[route], native)
        families.add_counts("goodput_aggregator_requests_refused_total", "reason", self.refused)
        families.add_counts("goodput_aggregator_auth_failures_total", "reason", self.failures)
        families.add("goodput_aggregator_connections", {}, self.connections)
