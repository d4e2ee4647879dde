"""Browser sessions: a cookie stands for a token for SESSION_SECONDS.

Sessions are kept in memory by the cookie's hash, so a restart signs everybody out; a revoked token ends its sessions.
They are bounded per token and in total. A token at its bound loses its oldest session from the same address, so that
no client signs out others that share the token; if there is none, TooManySessions. At the total bound the oldest ends.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import NamedTuple

from goodput.access.responses import Refusal
from goodput.access.token_cache import TokenCache
from goodput.access.tokens import Access, digest
from goodput.aggregator.http.limits import SESSION_SECONDS, SESSIONS_MAX, SESSIONS_PER_TOKEN_MAX


class TooManySessions(Exception):
    """The token has as many sessions as allowed, none of them from this address."""


class _Session(NamedTuple):
    access: Access
    end: float
    address: str


class Sessions:
    def __init__(self, tokens: TokenCache, clock: Callable[[], float] = time.monotonic):
        self._tokens, self._clock = tokens, clock
        self._sessions: dict[bytes, _Session] = {}  # by the cookie's hash, oldest first

    def __len__(self) -> int:
        self._remove_expired()
        return len(self._sessions)

    def begin(self, access: Access, address: str = "") -> str:
        """Start a session; returns the cookie's value. Raises TooManySessions."""
        self._remove_expired()
        own = [key for key, one in self._sessions.items() if one.access.token_id == access.token_id]
        if len(own) >= SESSIONS_PER_TOKEN_MAX:
            same = [key for key in own if self._sessions[key].address == address]
            if not same:
                raise TooManySessions(f"token {access.name} has {len(own)} sessions from other addresses")
            del self._sessions[same[0]]
        while len(self._sessions) >= SESSIONS_MAX:
            del self._sessions[next(iter(self._sessions))]
        cookie = secrets.token_urlsafe(32)
        self._sessions[digest(cookie.encode())] = _Session(access, self._clock() + SESSION_SECONDS, address)
        return cookie

    def access(self, cookie: bytes) -> Access:
        """The session's current Access. Raises Refusal: session (unknown, ended, token revoked) or expired."""
        # Looked up by a hash of 256 random bits, so the time of a failed lookup reveals nothing.
        session = self._sessions.get(digest(cookie))
        if session is None or self._clock() >= session.end:
            raise Refusal("session", "the session has ended; sign in again")
        return self._tokens.refresh(session.access)

    def end(self, cookie: bytes) -> Access | None:
        """End a session; whose it was."""
        session = self._sessions.pop(digest(cookie), None)
        return None if session is None else session.access

    def _remove_expired(self) -> None:
        now = self._clock()
        self._sessions = {key: one for key, one in self._sessions.items() if now < one.end}
