"""The valid tokens in memory, reloaded when the token file changes.

A lookup costs one microsecond and takes as long for an unknown id as for a known one.

    tokens = TokenCache("tokens.json"); tokens.lookup(b"goodput_read_...")     # raises Refusal
"""

from __future__ import annotations

import hmac
import os
import time
from collections.abc import Callable

from goodput.access import token_file
from goodput.access.reloading import ReloadedFiles
from goodput.access.responses import Refusal
from goodput.access.tokens import SCOPES, TEXT, TOKEN_CHARS_MAX, Access, Token, digest


class TokenCache(ReloadedFiles):
    """Finds tokens by id and compares SHA-256 hashes. Raises token_file.FileError if the file cannot be used."""

    def __init__(self, path: str, clock: Callable[[], float] = time.time):
        super().__init__(path)
        self._clock = clock
        # Called with what became of a token (created, revoked, changed) when the file changed.
        self.on_change: Callable[[str, Token], object] = lambda what, token: None
        self._tokens: dict[str, tuple[Token, Access]] = {}
        # Compared with for unknown ids, so that the lookup takes as long.
        self._no_digest = os.urandom(32)
        self._load()
        self._warn_of_permissions()

    def lookup(self, text: bytes) -> Access:
        """What a token permits. Raises Refusal: malformed, unknown or expired."""
        if len(text) > TOKEN_CHARS_MAX or not (match := TEXT.fullmatch(text.decode("latin-1"))):
            raise Refusal("malformed", "malformed token: expected goodput_SCOPE_ID_SECRET")
        found = self._find(match[2], digest(text))
        if found is None:
            # The token may be newer than the last reload. A file known to be broken is not read for each wrong token.
            self.reload(retry_failed=False)
            found = self._find(match[2], digest(text))
        if found is None:
            raise Refusal("unknown", "unknown or revoked token")
        token, access = found
        self._check_expiry(token)
        return access

    def refresh(self, access: Access) -> Access:
        """The current Access of the same token. Raises Refusal: session (token revoked) or expired."""
        token, current = self._tokens.get(access.token_id, (None, None))
        if token is None or current is None:
            raise Refusal("session", "the token of this session was revoked")
        self._check_expiry(token)
        return current

    @property
    def mark(self) -> object:
        """Another one since the tokens were last read."""
        return self._tokens

    def is_lasting(self, access: Access) -> bool:
        """Whether a token does not expire."""
        token, _ = self._tokens[access.token_id]
        return token.expires is None

    def gpus_max(self, token_id: str) -> int | None:
        """How many GPUs the runs of a token may have together; None if that is not limited, or there is no such token."""
        token, _ = self._tokens.get(token_id, (None, None))
        return None if token is None else token.gpus

    def count_by_scope(self) -> dict[str, int]:
        """Number of unexpired tokens by scope."""
        now = self._clock()
        scopes = [token.scope for token, _ in self._tokens.values() if now < (token.expires or now + 1)]
        return {scope: scopes.count(scope) for scope in SCOPES}

    def next_expiry(self) -> float | None:
        """Unix time at which the next token expires, None if none does."""
        now = self._clock()
        times = [token.expires for token, _ in self._tokens.values() if token.expires and token.expires > now]
        return min(times, default=None)

    def _find(self, token_id: str, sha256: bytes) -> tuple[Token, Access] | None:
        found = self._tokens.get(token_id)
        is_same = hmac.compare_digest(sha256, found[0].sha256 if found else self._no_digest)
        return found if is_same else None

    def _check_expiry(self, token: Token) -> None:
        if token.expires is not None and self._clock() >= token.expires:
            raise Refusal("expired", f"token {token.name} has expired")

    def _load(self) -> None:
        before = self._tokens
        self._tokens = {token.id: (token, token.access()) for token in token_file.read(self._paths[0])}
        self._tell_changes({key: token for key, (token, _) in before.items()})

    def _tell_changes(self, before: dict[str, Token]) -> None:
        after = {key: token for key, (token, _) in self._tokens.items()}
        for key in before.keys() - after.keys():
            self.on_change("revoked", before[key])
        for key, token in after.items():
            if before.get(key) != token:
                self.on_change("changed" if key in before else "created", token)
