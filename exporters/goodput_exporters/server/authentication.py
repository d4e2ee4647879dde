"""Who may read the agent's own pages: everybody, or who brings a token of scope metrics or read; and with which
certificate it is served.

In: an Authorization header. Out: None, or a status and a line to answer. /healthz is open to all: it tells of no run.
The agent's series are of all runs on its node, so a token that is for some runs only does not open them.
"""

from __future__ import annotations

import ssl
from collections import Counter

from goodput.access.listening import Certificate, host_of, is_loopback
from goodput.access.token_cache import Denied, Keeper
from goodput.metrics import Families

SCOPES = frozenset(("metrics", "read"))
REASONS = ("missing", "malformed", "unknown", "expired", "scope", "host")


class Gate:
    """`keeper` is None where no tokens are asked for, `certificate` where no TLS is spoken.

    With `any_host` a request may name any host: somebody asks who it is, or everybody may read.
    """

    def __init__(
        self,
        keeper: Keeper | None = None,
        certificate: Certificate | None = None,
        any_host: bool = False,
    ):
        self._keeper, self._certificate = keeper, certificate
        self._any_host = any_host or keeper is not None
        self._refused = Counter(dict.fromkeys(REASONS, 0))

    @property
    def context(self) -> ssl.SSLContext | None:
        return self._certificate.context if self._certificate else None

    def look(self) -> None:
        """At files that may have changed."""
        for kept in (self._keeper, self._certificate):
            if kept:
                kept.look()

    def misnamed(self, hosts: list[str]) -> tuple[int, str] | None:
        """None where a request to a loopback address may name these hosts.

        A page of the internet whose name suddenly means 127.0.0.1 (DNS rebinding) names its own.
        """
        if self._any_host or (len(hosts) == 1 and is_loopback(host_of(hosts[0]))):
            return None
        self._refused["host"] += 1
        return 421, (
            "without tokens this agent answers to names of its own machine only (localhost, 127.0.0.1); "
            "a proxy in front sends one of those as Host, or --metrics-public lets everybody read"
        )

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
        for name, kept in (("tokens", self._keeper), ("certificate", self._certificate)):
            is_failing = kept is not None and kept.is_failing
            families.add("goodput_node_reload_failing", {"file": name}, int(is_failing))
        for reason, count in self._refused.items():
            families.add("goodput_node_requests_refused_total", {"reason": reason}, count)

    def _check(self, authorization: str | None) -> None:
        if authorization is None:
            raise Denied(
                "missing", "want the header Authorization: Bearer TOKEN, with a token of scope metrics"
            )
        kind, _, text = authorization.partition(" ")
        if kind.lower() != "bearer":
            raise Denied("malformed", "want the header Authorization: Bearer TOKEN")
        access = self._keeper.access(text.strip(" ").encode("latin-1", "replace"))
        if not SCOPES.intersection(access.scopes):
            raise Denied(
                "scope",
                f"the token {access.name} is of scope {access.scopes[0]}, this needs one of scope metrics",
            )
        if not access.is_of_all:
            raise Denied(
                "scope", f"the token {access.name} is for some runs; these series are of all runs on a node"
            )
