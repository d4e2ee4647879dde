"""Command-line options shared by commands that listen or connect. Imports little: every command loads it."""

from __future__ import annotations

import argparse
from urllib.parse import SplitResult, urlsplit


def add_access_options(add) -> None:
    """Add the options for tokens and TLS with a parser's or group's `add_argument`."""
    add(
        "--tokens",
        metavar="FILE",
        help="require bearer tokens from this file (see `goodput token create --help`)",
    )
    add("--tls-cert", metavar="FILE", help="serve TLS with this certificate (PEM, with its chain)")
    add("--tls-key", metavar="FILE", help="the certificate's key (PEM, not encrypted)")
    add("--client-ca", metavar="FILE",
        help="require client certificates of this authority; with --tokens both are required, without --tokens a "
        "certificate gives full access")  # fmt: skip
    add("--insecure-http", action="store_true",
        help="allow plain HTTP on other addresses than loopback: a proxy terminates TLS, or the network is trusted; "
        "of `goodput serve` also --stream without TLS")  # fmt: skip
    add("--metrics-public", action="store_true", help="serve /metrics without a token")


def listen_address(text: str) -> tuple[str, int]:
    """(host, port) from HOST:PORT or [IPV6]:PORT, for argparse."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise argparse.ArgumentTypeError(f"{text!r}: put an IPv6 address in brackets, such as [::1]:9470")
    if not colon or not (port.isascii() and port.isdigit() and int(port[:6]) < 65536):
        raise argparse.ArgumentTypeError(f"{text!r}: expected ADDRESS:PORT with a port from 0 to 65535")
    return host, int(port)


def service_url(text: str, instead: str, example: str) -> SplitResult:
    """The parts of the URL of a server, for argparse; `instead` says how to give a password, which it may not have."""
    try:
        parts = urlsplit(text)
        is_valid = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port)
    except ValueError:
        parts, is_valid = SplitResult("", "", "", "", ""), False
    if is_valid and (parts.username or parts.password):
        raise argparse.ArgumentTypeError(
            f"every user of this machine can read a password in a URL; {instead}"
        )
    if not is_valid or parts.query or parts.fragment:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a URL such as {example}")
    return parts
