"""Which addresses a server may listen on, given its authentication and TLS options.

Loopback needs nothing. Any other address needs authentication (tokens or client certificates), and TLS unless
`--insecure-http` declares that a proxy terminates TLS or the network is trusted.
"""

from __future__ import annotations

import argparse
import ipaddress


class OptionError(ValueError):
    """Unsafe or contradictory options; the text says what to do."""


def check_options(arguments: argparse.Namespace, host: str, *, only_metrics: bool = False) -> None:
    """Raise OptionError for contradictory options, or if they are not enough for this address.

    `only_metrics`: the server serves nothing but /metrics, so --metrics-public opens all of it.
    """
    if bool(arguments.tls_cert) != bool(arguments.tls_key):
        raise OptionError("--tls-cert and --tls-key go together")
    if arguments.client_ca and not arguments.tls_cert:
        raise OptionError("--client-ca needs --tls-cert and --tls-key: client certificates are part of TLS")
    if is_loopback(host):
        return
    is_public = only_metrics and arguments.metrics_public
    if not (arguments.tokens or arguments.client_ca or is_public):
        also = " On a trusted network, --metrics-public is enough." if only_metrics else ""
        raise OptionError(
            f"--listen {host} is not loopback and nothing authenticates clients. Use\n"
            "  --tokens FILE with --tls-cert and --tls-key (goodput token create --help); or\n"
            "  --client-ca FILE with --tls-cert and --tls-key, to require client certificates; or\n"
            f"  a loopback address behind a proxy on this host that authenticates.{also}"
        )
    if not (arguments.tls_cert or arguments.insecure_http or is_public):
        raise OptionError(
            f"--listen {host}: without --tls-cert and --tls-key tokens are sent in clear text. If a proxy "
            "terminates TLS or the network is trusted, add --insecure-http"
        )


def is_loopback(host: str) -> bool:
    try:
        # IPv4 written as IPv6 is loopback from Python 3.13 on; here never.
        return host == "localhost" or (
            ipaddress.ip_address(host).is_loopback and not host.lower().startswith("::ffff:")
        )
    except ValueError:
        return False


def host_of(netloc: str) -> str:
    """The host of `HOST`, `HOST:PORT` or `[IPV6]:PORT` in lower case; '' if it is none of these."""
    if netloc.startswith("["):
        host, _, rest = netloc[1:].partition("]")
        return host.lower() if rest[:1] in ("", ":") else ""
    return netloc.partition(":")[0].lower()
