"""The options of a command that listens, the same for all of them. It imports nothing, since every command reads it."""

from __future__ import annotations


def add_options(add) -> None:
    """The options of a server, the same for every command that listens."""
    add("--tokens", metavar="FILE", help="ask for tokens; `goodput token create` makes the file")
    add("--tls-cert", metavar="FILE", help="speak TLS with this certificate (PEM, with its chain)")
    add("--tls-key", metavar="FILE", help="the certificate's key (PEM, not encrypted)")
    add("--client-ca", metavar="FILE",
        help="let in only who has a certificate of this authority; with --tokens both are needed, without it the "
        "certificate opens everything")  # fmt: skip
    add("--insecure-http", action="store_true",
        help="listen without TLS on other addresses than loopback: a proxy in front speaks it, or the network is "
        "trusted")  # fmt: skip
    add("--metrics-public", action="store_true", help="no token is needed for /metrics")
