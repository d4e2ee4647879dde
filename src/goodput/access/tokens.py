"""Tokens: how one is made, what of it is kept, and what it opens.

In: a name, a scope, runs. Out: the token's text, once, and the Token that the file keeps of it.

A token is 256 random bits behind a public id: `goodput_read_1f2e3d4c5b6a_<64 hex digits>`. Kept is its SHA-256 and
no more. A slow, salted hash is for passwords, which can be guessed; 256 random bits cannot, and a plain hash costs each
request one microsecond. The id finds the entry; the whole text is compared.

What it opens: `ingest` pushes reports, `read` reads; `metrics` opens the /metrics of node agents and nothing of an
aggregator, so that what Prometheus shows each node is worth nothing elsewhere. The first two may be held to runs by
patterns as in a shell (`*`, `?`, `[abc]`; `*` takes slashes too) and to a tenant. A tenant is the first part of a run's
name: tenant `vision` has the runs `vision/...`, and patterns then hold within it.

    text, token = make("prometheus", "read"); token.access().may("any-run")
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import translate

SCOPES = ("ingest", "read", "metrics")
TEXT = re.compile(r"goodput_(ingest|read|metrics)_([0-9a-f]{12})_[0-9a-f]{64}")
ID = re.compile(r"[0-9a-f]{12}")
TOKEN_CHARS_MAX = 128
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
RUN_CHARS_MAX, RUNS_MAX = 128, 64
# Of one pattern: each star may look at the rest of a name again.
STARS_MAX = 4
ALL = ("*",)


@dataclass(frozen=True)
class Access:
    """What somebody may do: the scopes, and the runs. `may` says of a run's name whether it is one of them."""

    name: str
    scopes: tuple[str, ...]
    runs: tuple[str, ...] = ALL
    token_id: str = ""
    _matches: Callable | None = field(default=None, repr=False, compare=False)

    def __post_init__(self):
        if not self.is_of_all:
            one_of = "|".join(translate(pattern) for pattern in self.runs)
            object.__setattr__(self, "_matches", re.compile(one_of).match)

    @property
    def is_of_all(self) -> bool:
        return "*" in self.runs

    def may(self, run: str) -> bool:
        # A name that is too long is no run's, and not worth a search.
        return self._matches is None or (len(run) <= RUN_CHARS_MAX and self._matches(run) is not None)


EVERYTHING = Access("everybody", ("ingest", "read"))


@dataclass(frozen=True)
class Token:
    """What is kept of a token. `expires` is in unix seconds, None for never."""

    id: str
    name: str
    scope: str
    sha256: bytes
    runs: tuple[str, ...] = ALL
    tenant: str | None = None
    created: float = 0.0
    expires: float | None = None

    def access(self) -> Access:
        inside = f"{self.tenant}/" if self.tenant else ""
        return Access(self.name, (self.scope,), tuple(inside + run for run in self.runs), self.id)


def make(
    name: str,
    scope: str,
    *,
    runs: tuple[str, ...] = ALL,
    tenant: str | None = None,
    created: float = 0.0,
    expires: float | None = None,
) -> tuple[str, Token]:
    """A new token: its text, which nobody can get again, and what to keep of it. ValueError says what is wrong."""
    check(name, scope, runs, tenant)
    number = secrets.token_hex(6)
    text = f"goodput_{scope}_{number}_{secrets.token_hex(32)}"
    return text, Token(number, name, scope, digest(text.encode()), tuple(runs), tenant, created, expires)


def check(name: str, scope: str, runs, tenant: str | None) -> None:
    if not NAME.fullmatch(name):
        raise ValueError(f"name {name[:80]!r}: want 1 to 64 letters, digits or . _ @ -")
    if scope not in SCOPES:
        raise ValueError(f"scope {scope[:80]!r}: want ingest, read or metrics")
    if scope == "metrics" and (tuple(runs) != ALL or tenant is not None):
        raise ValueError(
            "a token of scope metrics is for all runs: an agent's series are of all runs on its node"
        )
    if tenant is not None and not NAME.fullmatch(tenant):
        raise ValueError(f"tenant {tenant[:80]!r}: want 1 to 64 letters, digits or . _ @ -")
    if not 1 <= len(runs) <= RUNS_MAX:
        raise ValueError(f"{len(runs)} patterns of runs: want 1 to {RUNS_MAX}")
    for run in runs:
        if not 0 < len(run) <= RUN_CHARS_MAX or not run.isprintable() or run.count("*") > STARS_MAX:
            raise ValueError(
                f"run {run[:80]!r}: want 1 to {RUN_CHARS_MAX} printable characters, at most {STARS_MAX} stars"
            )


def digest(text: bytes) -> bytes:
    return hashlib.sha256(text).digest()
