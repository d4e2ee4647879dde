"""Who may read the agent's own pages: everybody, or who brings a read token; and with which certificate it is served.

In: an Authorization header. Out: None, or a status and a line to answer. /healthz is open to all: it tells of no run.
The agent's series are of all runs on its node, so a token that is for some runs only does not open them.
"""

from __future__ import annotations

import ssl
from collections import Counter

from goodput.access.keeper import Denied, Keeper
from goodput.access.listening import Certificate
from goodput.metrics import Families

REASONS = ("missing", "malformed", "unknown", "expired", "scope")


class Gate:
    """`keeper` is None where no tokens are asked for, `certificate` where no TLS is spoken."""

    def __init__(self, keeper: Keeper | None = None, certificate: Certificate | None = None):
        self._keeper, self._certificate = keeper, certificate
        self._refused = Counter(dict.fromkeys(REASONS, 0))

    @property
    def context(self) -> ssl.SSLContext | None:
        return self._certificate.context if self._certificate else None

    def look(self) -> None:
        """At files that may have changed."""
        for kept in (self._keeper, self._certificate):
            if kept:
                kept.look()

    def refusal(self, authorization: str | None) -> tuple[int, str] | None:
        """None for who may read."""
        if self._keeper is None:
            return None
        try:
            self._check(authorization)
        except Denied as denied:
            self._refused[denied.reason] += 1
            return 403 if denied.reason == "scope" else 401, str(denied)
        return None

    def collect(self, families: Families) -> None:
        errors = sum(kept.errors for kept in (self._keeper, self._certificate) if kept)
        families.add("goodput_node_token_reload_errors_total", {}, errors)
        for reason, count in self._refused.items():
            families.add("goodput_node_requests_refused_total", {"reason": reason}, count)

    def _check(self, authorization: str | None) -> None:
        if authorization is None:
            raise Denied("missing", "want the header Authorization: Bearer TOKEN, with a token of scope read")
        kind, _, text = authorization.partition(" ")
        if kind.lower() != "bearer":
            raise Denied("malformed", "want the header Authorization: Bearer TOKEN")
        access = self._keeper.access(text.strip(" ").encode("latin-1", "replace"))
        if "read" not in access.scopes:
            raise Denied(
                "scope",
                f"the token {access.name} is of scope {access.scopes[0]}, this needs one of scope read",
            )
        if not access.is_of_all:
            raise Denied(
                "scope", f"the token {access.name} is for some runs; these series are of all runs on a node"
            )
