"""Bearer tokens: how one is made, what is stored of it, and what it permits.

A token is 256 random bits behind a public id: `goodput_read_1f2e3d4c5b6a_<64 hex digits>`. Only its SHA-256 is
stored: slow salted hashes protect guessable passwords, and 256 random bits cannot be guessed, so one microsecond
per request is enough.

Scope `ingest` pushes reports, `read` reads, `metrics` opens the /metrics of node agents and nothing of an aggregator
(Prometheus shows its token to every node). The first two may be limited to runs by shell patterns (`*` also matches
slashes) and to a tenant, the first part of a run's name: tenant `vision` has the runs `vision/...`.

    text, token = make("prometheus", "read"); token.access().may("any-run")
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import translate
from functools import cached_property

SCOPES = ("ingest", "read", "metrics")
TEXT = re.compile(r"goodput_(ingest|read|metrics)_([0-9a-f]{12})_[0-9a-f]{64}")
ID, SHA256 = re.compile(r"[0-9a-f]{12}"), re.compile(r"[0-9a-f]{64}")
TOKEN_CHARS_MAX = 128
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
RUN_CHARS_MAX, RUNS_MAX = 128, 64
# Per pattern: matching time grows with each star.
STARS_MAX = 4
ALL = ("*",)


@dataclass(frozen=True)
class Access:
    """What a client may do: its scopes, and patterns of the runs it may access."""

    name: str
    scopes: tuple[str, ...]
    runs: tuple[str, ...] = ALL
    token_id: str = ""

    @cached_property
    def _matches(self) -> Callable:
        return re.compile("|".join(map(translate, self.runs))).match

    @property
    def is_of_all(self) -> bool:
        """Whether it covers all runs."""
        return "*" in self.runs

    def may(self, run: str) -> bool:
        """Whether this run is one of them."""
        return self.is_of_all or (len(run) <= RUN_CHARS_MAX and self._matches(run) is not None)


EVERYTHING = Access("everybody", ("ingest", "read"))


@dataclass(frozen=True)
class Token:
    """What is stored of a token. Times are unix seconds; `expires` None is never. Raises ValueError for invalid fields."""

    id: str
    name: str
    scope: str
    sha256: bytes
    runs: tuple[str, ...] = ALL
    tenant: str | None = None
    created: float = 0.0
    expires: float | None = None
    gpus: int | None = None  # that its runs may have together while they report

    def __post_init__(self):
        for kind, value in (("name", self.name), ("tenant", self.tenant)):
            if value is not None and not NAME.fullmatch(value):
                raise ValueError(f"{kind} {value[:80]!r}: expected 1 to 64 letters, digits or . _ @ -")
        if self.scope not in SCOPES:
            raise ValueError(f"scope {self.scope[:80]!r}: expected ingest, read or metrics")
        if self.scope == "metrics" and (self.runs != ALL or self.tenant is not None):
            raise ValueError(
                "a token of scope metrics covers all runs: an agent's series are of all runs on its node"
            )
        if self.gpus is not None and (self.scope != "ingest" or self.access().is_of_all or self.gpus < 1):
            raise ValueError(
                f"gpus {self.gpus}: expected 1 or more, of a token of scope ingest for some runs"
            )
        if not 1 <= len(self.runs) <= RUNS_MAX:
            raise ValueError(f"{len(self.runs)} run patterns: expected 1 to {RUNS_MAX}")
        for run in self.runs:
            if not 0 < len(run) <= RUN_CHARS_MAX or not run.isprintable() or run.count("*") > STARS_MAX:
                limits = f"1 to {RUN_CHARS_MAX} printable characters with at most {STARS_MAX} stars"
                raise ValueError(f"run {run[:80]!r}: expected {limits}")

    def access(self) -> Access:
        prefix = f"{self.tenant}/" if self.tenant else ""
        return Access(self.name, (self.scope,), tuple(prefix + run for run in self.runs), self.id)


def make(name: str, scope: str, **fields) -> tuple[str, Token]:
    """A new token: its text, which cannot be recovered later, and what to store. Raises ValueError."""
    token_id = secrets.token_hex(6)
    text = f"goodput_{scope}_{token_id}_{secrets.token_hex(32)}"
    return text, Token(token_id, name, scope, digest(text.encode()), **fields)


def digest(text: bytes) -> bytes:
    return hashlib.sha256(text).digest()
