"""Browsers that are signed in: a cookie stands for a token for some hours.

In: a token's Access. Out: a cookie's value, and for that value the Access as the token file has it now, so that what is
revoked is out at once. Kept is the cookie's hash; sessions are in memory alone, so a restart signs everybody out.
Bounded, by token and in all; the oldest go first.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

from goodput.access.keeper import Denied, Keeper
from goodput.access.tokens import Access, digest
from goodput.aggregator.limits import SESSION_SECONDS, SESSIONS_MAX, SESSIONS_PER_TOKEN_MAX


class Sessions:
    def __init__(self, keeper: Keeper, clock: Callable[[], float] = time.monotonic):
        self._keeper, self._clock = keeper, clock
        self._open: dict[bytes, tuple[Access, float]] = {}  # oldest first

    def __len__(self) -> int:
        self._forget_old()
        return len(self._open)

    def begin(self, access: Access) -> str:
        """A new session of a token; the cookie's value."""
        self._forget_old()
        own = [key for key, (held, _) in self._open.items() if held.token_id == access.token_id]
        for key in own[: max(len(own) - SESSIONS_PER_TOKEN_MAX + 1, 0)]:
            del self._open[key]
        while len(self._open) >= SESSIONS_MAX:
            del self._open[next(iter(self._open))]
        cookie = secrets.token_urlsafe(32)
        self._open[digest(cookie.encode())] = (access, self._clock() + SESSION_SECONDS)
        return cookie

    def access(self, cookie: bytes) -> Access:
        """Raises Denied: session (unknown or over, or its token was revoked), expired (its token)."""
        # Found by a hash of 256 random bits, so how long it takes to not find one tells nothing.
        held, until = self._open.get(digest(cookie), (None, 0.0))
        if held is None or self._clock() >= until:
            raise Denied("session", "not signed in any more")
        return self._keeper.still(held)

    def end(self, cookie: bytes) -> None:
        self._open.pop(digest(cookie), None)

    def _forget_old(self) -> None:
        now = self._clock()
        for key in [key for key, (_, until) in self._open.items() if now >= until]:
            del self._open[key]
