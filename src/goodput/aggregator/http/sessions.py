"""Browsers that are signed in: a cookie stands for a token for some hours.

In: a token's Access. Out: a cookie's value, and for that value the Access as the token file has it now, so that what is
revoked is out at once. Kept is the cookie's hash; sessions are in memory alone, so a restart signs everybody out.
Bounded, by token and in all. Of a token that has them all the oldest from the same address goes first, so that nobody
signs out others who share it; where there is none, Full. Of all the oldest goes.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

from goodput.access.token_cache import Denied, Keeper
from goodput.access.tokens import Access, digest
from goodput.aggregator.http.limits import SESSION_SECONDS, SESSIONS_MAX, SESSIONS_PER_TOKEN_MAX


class Full(Exception):
    """This token has as many sessions as it may have, and none from this address."""


class Sessions:
    def __init__(self, keeper: Keeper, clock: Callable[[], float] = time.monotonic):
        self._keeper, self._clock = keeper, clock
        self._open: dict[
            bytes, tuple[Access, float, str]
        ] = {}  # oldest first; until when, from which address

    def __len__(self) -> int:
        self._forget_old()
        return len(self._open)

    def begin(self, access: Access, address: str = "") -> str:
        """A new session of a token; the cookie's value. Raises Full."""
        self._forget_old()
        own = [key for key, (held, *_) in self._open.items() if held.token_id == access.token_id]
        if len(own) >= SESSIONS_PER_TOKEN_MAX:
            same = [key for key in own if self._open[key][2] == address]
            if not same:
                raise Full(
                    f"{len(own)} browsers are signed in with the token {access.name}, from other addresses; one has to "
                    "sign out, or make a token for each person"
                )
            del self._open[same[0]]
        while len(self._open) >= SESSIONS_MAX:
            del self._open[next(iter(self._open))]
        cookie = secrets.token_urlsafe(32)
        self._open[digest(cookie.encode())] = (access, self._clock() + SESSION_SECONDS, address)
        return cookie

    def access(self, cookie: bytes) -> Access:
        """Raises Denied: session (unknown or over, or its token was revoked), expired (its token)."""
        # Found by a hash of 256 random bits, so how long it takes to not find one tells nothing.
        held, until, _ = self._open.get(digest(cookie), (None, 0.0, ""))
        if held is None or self._clock() >= until:
            raise Denied("session", "not signed in any more")
        return self._keeper.still(held)

    def end(self, cookie: bytes) -> None:
        self._open.pop(digest(cookie), None)

    def _forget_old(self) -> None:
        now = self._clock()
        for key in [key for key, (_, until, _) in self._open.items() if now >= until]:
            del self._open[key]
