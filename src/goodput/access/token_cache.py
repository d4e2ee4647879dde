"""The tokens in force: whose a token is, and a look at the file now and then.

In: a token file, tokens' texts as they came. Out: an Access, or Denied. A file that changed is read again at the next
`look`; one that cannot be used, or is gone, is logged and counted once and tried again at each look, and the tokens from
before stay in force, `is_failing` until one can be used. A check costs one microsecond, and the same for an id that is
there and one that is not.

    keeper = Keeper("tokens.json"); keeper.access(b"goodput_read_...")     # raises Denied
"""

from __future__ import annotations

import hmac
import logging
import os
import time
from collections.abc import Callable

from goodput.access import token_file
from goodput.access.tokens import SCOPES, TEXT, TOKEN_CHARS_MAX, Access, Token, digest

log = logging.getLogger("goodput.access")


class Denied(Exception):
    """No right to it. `reason` is one word for a counter; the text is for the answer and holds no secret."""

    def __init__(self, reason: str, text: str):
        super().__init__(text)
        self.reason = reason


class Keeper:
    """Knows tokens by their hash. Raises file.FileError where there is no usable file to begin with."""

    def __init__(self, path: str, clock: Callable[[], float] = time.time):
        self.path, self._clock = path, clock
        self.errors, self.is_failing = 0, False
        self._failure: tuple | None = None
        self._mark = mark_of(path)
        self._tokens: dict[str, tuple[Token, Access]] = {}
        self._take(token_file.read(path))
        # Compared with where there is no such id, so that the answer takes as long.
        self._nobody = os.urandom(32)

    def look(self, retries: bool = True) -> None:
        """Read the file again if it is another one than that in force; one that failed only if this look `retries`."""
        mark = mark_of(self.path)
        if mark == self._mark and not self.is_failing:
            return
        if not retries and self._failure is not None and mark == self._failure[0]:
            return
        try:
            self._take(token_file.read(self.path))
        except token_file.FileError as error:
            self.is_failing, before, self._failure = True, self._failure, (mark, str(error))
            if self._failure != before:
                self.errors += 1
                log.error("%s; the %d tokens from before stay in force", error, len(self._tokens))
            return
        # Not before it was read: what failed for a moment, as where no more files can be opened, may be a revocation.
        self._mark, self._failure = mark, None
        if self.is_failing:
            self.is_failing = False
            # A warning, as its failure was an error: whoever was told of that wants to know that it is over.
            log.warning(
                "token file %s: can be used again; its %d tokens are in force", self.path, len(self._tokens)
            )

    def access(self, text: bytes) -> Access:
        """What a token opens. Raises Denied: malformed, unknown, expired."""
        if len(text) > TOKEN_CHARS_MAX or not (match := TEXT.fullmatch(text.decode("latin-1"))):
            raise Denied("malformed", "this is no token of goodput: want goodput_SCOPE_ID_SECRET")
        found = self._find(match[2], digest(text))
        if found is None:
            # It may be newer than the last look: whoever was handed a new token can use it at once. A file that cannot
            # be used is not read for each wrong token.
            self.look(retries=False)
            found = self._find(match[2], digest(text))
        if found is None:
            raise Denied("unknown", "this token is not known here, or was revoked")
        token, access = found
        self._check_time(token)
        return access

    def _find(self, number: str, sha256: bytes) -> tuple[Token, Access] | None:
        held = self._tokens.get(number)
        is_same = hmac.compare_digest(sha256, held[0].sha256 if held else self._nobody)
        return held if is_same else None

    def still(self, access: Access) -> Access:
        """The same token's access as of now. Raises Denied: session (it is gone), expired."""
        token, now = self._tokens.get(access.token_id, (None, None))
        if token is None or now is None:
            raise Denied("session", "the token that was signed in with was revoked")
        self._check_time(token)
        return now

    def counted(self) -> dict[str, int]:
        """How many tokens are in force, by scope."""
        now = self._clock()
        scopes = [token.scope for token, _ in self._tokens.values() if now < (token.expires or now + 1)]
        return {scope: scopes.count(scope) for scope in SCOPES}

    def next_expiry(self) -> float | None:
        now = self._clock()
        times = [token.expires for token, _ in self._tokens.values() if token.expires and token.expires > now]
        return min(times, default=None)

    def _check_time(self, token: Token) -> None:
        if token.expires is not None and self._clock() >= token.expires:
            raise Denied("expired", f"the token {token.name} has expired")

    def _take(self, tokens: list[Token]) -> None:
        self._tokens = {token.id: (token, token.access()) for token in tokens}
        if problem := token_file.warning(self.path):
            log.warning("%s", problem)


def mark_of(path: str) -> tuple | None:
    """Something that differs after a change of a file; None where there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
