"""The bearer token and Host header checks of the aggregator and the node agent.

Without tokens everyone who can connect has full access, so on loopback a request must name this machine as its
host: a web page whose DNS name is switched to 127.0.0.1 (DNS rebinding) names its own. With tokens, or with client
certificates (`any_host`), any host name is accepted.
"""

from __future__ import annotations

import argparse
import ssl

from goodput.access.certificate import Certificate
from goodput.access.listening import host_of, is_loopback
from goodput.access.responses import Refusal
from goodput.access.token_cache import TokenCache
from goodput.access.tokens import EVERYTHING, Access


class Authenticator:
    """`tokens` None: no token is required. `certificate` None: no TLS. `hosts`: further names of this machine."""

    def __init__(
        self,
        tokens: TokenCache | None = None,
        certificate: Certificate | None = None,
        *,
        hosts: tuple[str, ...] = (),
        any_host: bool = False,
    ):
        self.tokens, self.certificate = tokens, certificate
        self._hosts, self._any_host = frozenset(map(str.lower, hosts)), any_host or tokens is not None

    @classmethod
    def from_options(cls, arguments: argparse.Namespace, *, use_tokens: bool = True, **settings):
        """Built from the options of `access.options`. Raises ValueError for an unusable file."""
        tokens = TokenCache(arguments.tokens) if arguments.tokens and use_tokens else None
        files = (arguments.tls_cert, arguments.tls_key, arguments.client_ca)
        return cls(tokens, Certificate(*files) if arguments.tls_cert else None, **settings)

    @property
    def ssl_context(self) -> ssl.SSLContext | None:
        return self.certificate.context if self.certificate else None

    @property
    def reloaded_files(self) -> dict[str, TokenCache | Certificate]:
        """The files in use, by their label in the reload series."""
        files = {"tokens": self.tokens, "certificate": self.certificate}
        return {name: one for name, one in files.items() if one is not None}

    def reload(self) -> None:
        """Read token and certificate files that changed."""
        for one in self.reloaded_files.values():
            one.reload()

    def check_host(self, hosts: list[str]) -> None:
        """Raise Refusal("host") unless the Host headers name this machine, exactly once."""
        if self._any_host:
            return
        name = host_of(hosts[0]) if len(hosts) == 1 else ""
        if not (is_loopback(name) or name in self._hosts):
            raise Refusal(
                "host",
                "without tokens only requests to localhost or 127.0.0.1 are answered: have the proxy send "
                "Host: localhost, or start with --tokens, --allow-host NAME (aggregator) or --metrics-public (agent)",
            )

    def authenticate(self, authorizations: list[bytes], *scopes: str) -> Access:
        """The Access of the bearer token in the Authorization headers; one of `scopes` is required. Raises Refusal."""
        if self.tokens is None:
            return EVERYTHING
        if not authorizations:
            text = f"missing header Authorization: Bearer TOKEN, with a token of scope {scopes[0]}"
            raise Refusal("missing", text)
        scheme, _, token = authorizations[0].partition(b" ")
        if len(authorizations) > 1 or scheme.lower() != b"bearer":
            raise Refusal("malformed", "malformed header: expected Authorization: Bearer TOKEN, once")
        access = self.tokens.lookup(token.strip(b" "))
        require_scope(access, *scopes)
        return access


def require_scope(access: Access, *scopes: str) -> None:
    """Raise Refusal("scope") unless the token has one of these scopes."""
    if not set(scopes).intersection(access.scopes):
        raise Refusal(
            "scope", f"token {access.name} has scope {access.scopes[0]}; this requires scope {scopes[0]}"
        )
