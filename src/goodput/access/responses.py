"""What the agent's and the aggregator's servers answer alike: refusals, and headers that restrict a browser."""

from __future__ import annotations

# Status by the reason of a refusal; 401 for all others, which concern the token or session.
STATUSES = {
    "login": 303, "scope": 403, "origin": 403, "body": 413, "large": 413, "encoding": 415, "host": 421, "throttled": 429, "quota": 429,
    "head": 431, "busy": 503, "memory": 503, "starting": 503,
}  # fmt: skip
SECURITY_HEADERS = {
    "x-content-type-options": "nosniff",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
}


class Refusal(Exception):
    """A refused request: one word as the reason, for a counter, and a text for the client without any secret.

    `retry_after` is in seconds, None for what the reason usually has.
    """

    def __init__(self, reason: str, text: str, retry_after: int | None = None):
        super().__init__(text)
        self.reason, self.status, self.retry_after = reason, STATUSES.get(reason, 401), retry_after
