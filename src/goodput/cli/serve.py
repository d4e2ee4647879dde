"""`goodput serve`: the aggregator."""

from __future__ import annotations

import argparse
import ipaddress
import math
import os
import socket
import sys

DEFAULT_LISTEN = "127.0.0.1:9471"


def add_parser(subparsers) -> None:
    parser = subparsers.add_parser(
        "serve",
        help="run the aggregator: account, API, page and series of all runs",
        description="Take the reports of node agents and serve the account of every run:\n"
        "the page at /, the JSON API at /api/v1/runs, Prometheus series at /metrics.",
        epilog="example: goodput serve --listen 127.0.0.1:9471 --ledger sqlite:////var/lib/goodput/ledger.db",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--listen", default=DEFAULT_LISTEN, metavar="ADDRESS:PORT", help="default %(default)s"
    )
    parser.add_argument(
        "--ledger", metavar="URL", help="SQLAlchemy URL (default: sqlite, goodput-ledger.db in this folder)"
    )
    parser.add_argument(
        "--stall",
        "--stall-seconds",
        dest="stall",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="least length of a stall (default %(default)s)",
    )
    parser.add_argument(
        "--stale",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="a rank not reported for so long is unobserved (default %(default)s)",
    )
    parser.set_defaults(call=call)


def call(arguments) -> int:
    try:
        host, port = address(arguments.listen)
        for name in ("stall", "stale"):
            if not 0 < getattr(arguments, name) < math.inf:
                raise ValueError(f"--{name} {getattr(arguments, name)}: want a positive number of seconds")
        _require_loopback(host)
    except ValueError as error:
        print(f"goodput serve: {error}", file=sys.stderr)
        return 2
    import logging

    import uvicorn

    from goodput.aggregator.app import create_app
    from goodput.aggregator.ledger import LedgerError

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    ledger = arguments.ledger or f"sqlite:///{os.path.abspath('goodput-ledger.db')}"
    try:
        listener = _listener(host, port)
    except OSError as error:
        print(f"goodput serve: --listen {arguments.listen}: {error.strerror}", file=sys.stderr)
        return 1
    try:
        app = create_app(ledger, stall_seconds=arguments.stall, stale_seconds=arguments.stale)
    except LedgerError as error:
        print(f"goodput serve: {error}", file=sys.stderr)
        return 1
    server = uvicorn.Server(uvicorn.Config(app, host=host, port=port, log_level="warning", access_log=False))
    shown = f"[{host}]" if ":" in host else host
    print(f"goodput serve: page and API on http://{shown}:{listener.getsockname()[1]}", flush=True)
    print(f"goodput serve: ledger {app.state.ledger_url}", flush=True)
    server.run(sockets=[listener])
    return 0


def _listener(host: str, port: int) -> socket.socket:
    """A listening socket. From here on a client is answered, if a little later. Raises OSError."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(1024)
    except OSError:
        listener.close()
        raise
    return listener


def address(text: str) -> tuple[str, int]:
    """`ADDRESS:PORT` (an IPv6 address in brackets) as (address, port). Raises ValueError saying what is wrong."""
    host, separator, port = text.rpartition(":")
    if not separator or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"--listen {text!r}: want ADDRESS:PORT, such as {DEFAULT_LISTEN}")
    return host.strip("[]") or "127.0.0.1", int(port)


def _require_loopback(host: str) -> None:
    """There is no authentication yet, so nothing but loopback may be bound."""
    try:
        inside = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        inside = False
    if not inside:
        raise ValueError(
            f"--listen {host}: the API has no authentication, so it binds to loopback only. "
            "Put a proxy that authenticates in front of it to serve other hosts."
        )
