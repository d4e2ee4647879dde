"""`goodput serve`: the aggregator. On other addresses than loopback it asks for tokens, certificates, or both."""

from __future__ import annotations

import argparse
import math
import os
import socket
import sys

from goodput.access.options import add_options

DEFAULT_LISTEN = "127.0.0.1:9471"


def add_parser(subparsers) -> None:
    parser = subparsers.add_parser(
        "serve",
        help="run the aggregator: account, API, page and series of all runs",
        description="Take the reports of node agents and serve the account of every run:\n"
        "the page at /, the JSON API at /api/v1/runs, Prometheus series at /metrics.",
        epilog="examples:\n"
        "  goodput serve --listen 127.0.0.1:9471 --ledger sqlite:////var/lib/goodput/ledger.db\n"
        "  goodput serve --listen 0.0.0.0:9471 --tokens tokens.json --tls-cert cert.pem --tls-key key.pem",
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
    add_options(parser.add_argument)
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="without tokens: answer requests for this host name too, not for localhost alone; may be given several times",
    )
    parser.set_defaults(call=call)


def call(arguments) -> int:
    try:
        host, port = address(arguments.listen)
        for name in ("stall", "stale"):
            if not 0 < getattr(arguments, name) < math.inf:
                raise ValueError(f"--{name} {getattr(arguments, name)}: want a positive number of seconds")
        from goodput.access import listening

        listening.check(arguments, host)
    except ValueError as error:
        print(f"goodput serve: {error}", file=sys.stderr)
        return 2
    import logging

    from goodput.access.token_file import FileError
    from goodput.aggregator.api.app import create_app
    from goodput.aggregator.ledger.ledger import LedgerError

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        door = _door(arguments)
    except (FileError, listening.Refused) as error:
        print(f"goodput serve: {error}", file=sys.stderr)
        return 1
    ledger = arguments.ledger or f"sqlite:///{os.path.abspath('goodput-ledger.db')}"
    try:
        listener = listening_socket(host, port)
    except OSError as error:
        print(f"goodput serve: --listen {arguments.listen}: {error.strerror}", file=sys.stderr)
        return 1
    try:
        app = create_app(ledger, stall_seconds=arguments.stall, stale_seconds=arguments.stale, door=door)
    except LedgerError as error:
        print(f"goodput serve: {error}", file=sys.stderr)
        return 1
    shown, scheme = f"[{host}]" if ":" in host else host, "https" if door.certificate else "http"
    print(f"goodput serve: page and API on {scheme}://{shown}:{listener.getsockname()[1]}", flush=True)
    print(f"goodput serve: ledger {app.state.ledger_url}", flush=True)
    _collect_seldom()
    server_of(app).run(sockets=[listener])
    return 0


def _collect_seldom() -> None:
    """Keep Python's garbage collector from what stays.

    Each connection holds its last request, so that with thousands of them it looks, time and again, at a million
    objects that are in use: a sixth of the CPU, in pauses of a third of a second. Now it looks at the young ones after
    5 000 that were not let go of by themselves (some 10 ms), and at all of them after 5 million.
    """
    import gc

    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 20, 50)


def _door(arguments):
    """Who may come in, as the options say. Raises FileError, Refused."""
    from goodput.access.listening import certificate
    from goodput.access.token_cache import Keeper
    from goodput.aggregator.http.authentication import Door

    return Door(
        Keeper(arguments.tokens) if arguments.tokens else None,
        hosts=tuple(arguments.allow_host),
        any_host=bool(arguments.client_ca),
        metrics_public=arguments.metrics_public,
        certificate=certificate(arguments),
    )


def server_of(app):
    """The HTTP server of an aggregator's app, with the bounds that hold for all who connect."""
    import uvicorn

    from goodput.aggregator.http import limits
    from goodput.aggregator.http.connections import connections

    door = app.state.door
    config = uvicorn.Config(
        app,
        http=connections(door.requests, _files_max()),
        ws="none",
        # What a client writes in headers of proxies decides nothing here.
        proxy_headers=False,
        server_header=False,
        # Warnings are of requests that nobody can read: those are counted.
        log_level="error",
        access_log=False,
        timeout_keep_alive=limits.IDLE_SECONDS_MAX,
        timeout_graceful_shutdown=limits.SHUTDOWN_SECONDS_MAX,
    )
    config.load()
    # A context of our own, since its certificate is replaced when the files are.
    config.ssl = door.certificate.context if door.certificate else None
    return uvicorn.Server(config)


def _files_max() -> int:
    """How many connections fit beside the files that are open anyway; the soft limit is raised to the hard one."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return 65_536 if soft == resource.RLIM_INFINITY else max(soft - 256, 64)


def listening_socket(host: str, port: int) -> socket.socket:
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
