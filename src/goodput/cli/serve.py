"""`goodput serve`: run the aggregator. Other addresses than loopback require tokens, client certificates, or both."""

from __future__ import annotations

import argparse
import os
import re
import socket
import sys

from goodput.access.options import add_access_options, listen_address, service_url
from goodput.cli import (
    OldSpelling,
    fail,
    number,
    os_error_text,
    positive_seconds,
    raise_file_limit,
    share_memory_arena,
    tune_garbage_collector,
)
from goodput.cli.ledger import add_keep_options
from goodput.cli.parsing.config_file import add_config_option
from goodput.defaults import ABANDONED_SECONDS, STALE_SECONDS, STALL_SECONDS, START_DAYS_MAX
from goodput.otlp.settings import add_otlp_options, settings_of

# The interpreter's switch interval, a tenth of Python's default: a push may wait for it several times while threads that
# read the ledger compute.
SWITCH_SECONDS = 0.0005

DESCRIPTION = """Receive the reports of node agents and serve the account of every run:
the page at /, the JSON API at /api/v1/runs, Prometheus series at /metrics."""
EPILOG = """examples:
  goodput serve --listen 127.0.0.1:9471 --ledger sqlite:////var/lib/goodput/ledger.db
  goodput serve --listen 0.0.0.0:9471 --tokens tokens.json --tls-cert cert.pem --tls-key key.pem
  goodput serve --config /etc/goodput/serve.toml
  goodput serve --stream nats://n1:4222,nats://n2:4222,nats://n3:4222 --ledger postgresql://db/goodput
"""


def add_options(parser) -> None:
    from goodput.aggregator.stream.options import add_stream_options

    add_config_option(parser)
    add = parser.add_argument
    add("--listen", type=listen_address, default="127.0.0.1:9471", metavar="ADDRESS:PORT",
        help="address to listen on (default: %(default)s)")  # fmt: skip
    add("--ledger", metavar="URL",
        help="SQLAlchemy URL of the database (default: SQLite, goodput-ledger.db in the current folder)")  # fmt: skip
    add("--stall", type=positive_seconds, default=STALL_SECONDS, metavar="SECONDS",
        help="minimum length of a stall (default: %(default)s)")  # fmt: skip
    add("--stall-seconds", dest="stall", type=positive_seconds, action=OldSpelling, new="--stall",
        default=argparse.SUPPRESS)  # fmt: skip
    add("--stale", type=positive_seconds, default=STALE_SECONDS, metavar="SECONDS",
        help="a rank without a report for this long is unobserved (default: %(default)s)")  # fmt: skip
    add("--abandoned-after", dest="abandoned", type=number(float, 600, 365 * 86_400, " seconds"),
        default=ABANDONED_SECONDS, metavar="SECONDS",
        help="a run without a sign of life for this long is abandoned: no more time is counted and no alert fires, until "
        "it reports again; at least 600 (default: %(default)s, a day)")  # fmt: skip
    add("--oldest-start", type=number(float, 0.01, 36_500, " days"), default=START_DAYS_MAX, metavar="DAYS",
        help="refuse ranks that are not known and began longer ago, or before their run did if that is longer ago; raise "
        "it where trainings go on for longer when the ledger is a new one (default: %(default)s)")  # fmt: skip
    add("--ranks-shown", type=number(int, 0, 16, " ranks"), default=16, metavar="N",
        help="how many of a run's ranks and hosts, those that others waited for most, have series of their own on "
        "/metrics, 0 to 16 (default: %(default)s)")  # fmt: skip
    add("--memory", type=memory_bytes, metavar="SIZE",
        help="keep resident memory below this, such as 512MiB or 2G; 0 for no bound (default: 80 %% of the memory limit of "
        "the container or service, no bound where it has none)")  # fmt: skip
    add("--token-bytes", type=memory_bytes, default=4 << 20, metavar="SIZE",
        help="bytes of reports a second from each token for some runs, such as 4MiB; 0 for no bound (default: 4MiB)")  # fmt: skip
    add("--token-cpu", type=number(float, 0, 16, " cores"), default=0.25, metavar="CORES",
        help="CPU time that the reports of each token for some runs may take, as a share of a core; 0 for no bound "
        "(default: %(default)s)")  # fmt: skip
    add("--audit-log", metavar="FILE",
        help="append sign-ins, changes of tokens, ends of runs and refusals to this file (default: to the log)")  # fmt: skip
    add("--grafana", type=grafana_url, metavar="URL",
        help="link the page's runs and ranks to their boards in this Grafana, as browsers reach it")  # fmt: skip
    add_stream_options(parser, number, memory_bytes)
    add_keep_options(add)
    add_otlp_options(add, number(float, 0.1, 86_400, " seconds"))
    add_access_options(add)
    add("--allow-host", action="append", default=[], metavar="NAME",
        help="without tokens: also answer requests to this host name, not only to localhost; repeatable")  # fmt: skip


def call(arguments) -> int:
    import logging

    from goodput.access.listening import OptionError, check_options

    host, port = arguments.listen[0] or "127.0.0.1", arguments.listen[1]
    try:
        check_options(arguments, host)
        otlp = settings_of(arguments)
        role = _role(arguments)
    except (OptionError, ValueError) as error:
        return fail("serve", error, 2)

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # It warns of each connection that it closes after an error, which the ledger logs.
    logging.getLogger("psycopg").setLevel(logging.ERROR)
    logging.getLogger("nats").setLevel(logging.CRITICAL)  # Its errors are logged here, in one sentence each.
    # asyncio's, of each connection over TLS that a server ends.
    logging.getLogger("asyncio").addFilter(lambda record: "eof_received" not in str(record.msg))
    try:
        authenticator = _authenticator(arguments)
        listener = listening_socket(host, port)
    except ValueError as error:
        return fail("serve", error)
    except OSError as error:
        return fail("serve", f"cannot listen on {host}:{port}: {error.strerror}")
    if otlp:
        otlp = otlp._replace(instance=f"{socket.gethostname()}:{listener.getsockname()[1]}")
    shown, scheme = f"[{host}]" if ":" in host else host, "https" if authenticator.certificate else "http"
    address = f"{scheme}://{shown}:{listener.getsockname()[1]}"
    try:
        if role and arguments.role == "ingest":
            app = _ingest_worker(arguments, authenticator, role)
            print(f"goodput serve: ingest worker on {address}", flush=True)
        else:
            app = _aggregator(arguments, authenticator, role, otlp)
            print(f"goodput serve: page and API on {address}", flush=True)
            print(f"goodput serve: ledger {app.state.ledger_url}", flush=True)
    except _Failed as error:
        return fail("serve", error, error.code)
    if role:
        print(f"goodput serve: stream {role.stream.settings.shown}", flush=True)
    tune_garbage_collector(5_000)
    share_memory_arena()
    sys.setswitchinterval(SWITCH_SECONDS)
    server, startup = server_of(app), app.state.startup
    startup.on_failure = lambda: setattr(server, "should_exit", True)
    server.run(sockets=[listener])
    return 0 if startup.error is None else fail("serve", startup.error)


class _Failed(Exception):
    def __init__(self, text: object, code: int = 1):
        super().__init__(str(text))
        self.code = code


def _role(arguments):
    """What this process does with the stream, None without one. Raises ValueError."""
    from goodput.aggregator.stream.options import check_stream_options

    check_stream_options(arguments)
    if not arguments.stream:
        return None
    try:
        from goodput.aggregator.api.stream_role import StreamRole
        from goodput.aggregator.stream.connection import StreamSettings
    except ModuleNotFoundError as error:
        if error.name != "nats":
            raise
        raise ValueError("--stream needs nats-py: pip install 'goodput-telemetry[stream]'") from None
    settings = StreamSettings(
        urls=tuple(url for urls in arguments.stream for url in urls),
        count=arguments.partitions,
        replicas=arguments.stream_replicas,
        bytes_max=arguments.stream_bytes or -1,
        credentials=arguments.stream_credentials,
        ca=arguments.stream_ca,
    )
    host = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())[:64]
    name = f"{host}-{os.getpid()}-{os.urandom(4).hex()}"
    return StreamRole(settings, name, takes_pushes=arguments.role != "aggregate")


def _authenticator(arguments):
    """Raises ValueError, OSError."""
    from goodput.access.audit import AuditLog, file_logger
    from goodput.aggregator.http.authentication import RequestAuthenticator
    from goodput.aggregator.http.token_budgets import TokenLimits

    settings = {"hosts": tuple(arguments.allow_host), "any_host": bool(arguments.client_ca)}
    settings["metrics_public"] = arguments.metrics_public
    settings["token_limits"] = TokenLimits(arguments.token_bytes, arguments.token_cpu)
    if arguments.audit_log:
        try:
            settings["audit"] = AuditLog(file_logger(arguments.audit_log))
        except OSError as error:
            raise ValueError(f"--audit-log {arguments.audit_log}: {error.strerror}") from None
    return RequestAuthenticator.from_options(arguments, **settings)


def _aggregator(arguments, authenticator, role, otlp):
    """The app of an aggregator. Raises _Failed."""
    from goodput.aggregator.api.app import create_app
    from goodput.aggregator.ledger.compaction import Keep
    from goodput.aggregator.ledger.ledger import LedgerError
    from goodput.aggregator.ledger.owner import LedgerOwner
    from goodput.aggregator.memory_bound import TooSmall

    ledger = arguments.ledger or f"sqlite:///{os.path.abspath('goodput-ledger.db')}"
    try:
        return create_app(
            ledger,
            authenticator=authenticator,
            memory=_memory_bound(arguments.memory),
            stall_seconds=arguments.stall,
            stale_seconds=arguments.stale,
            abandoned_seconds=arguments.abandoned,
            start_days_max=arguments.oldest_start,
            ranks_shown=arguments.ranks_shown,
            keep=Keep(arguments.keep_steps, arguments.keep_minutes),
            owner=LedgerOwner(ledger, is_shared=role is not None),
            otlp=otlp,
            stream=role,
            grafana=arguments.grafana,
        )
    except TooSmall as error:
        raise _Failed(f"--memory: {error}", 2) from None
    except LedgerError as error:
        raise _Failed(error) from None


def _ingest_worker(arguments, authenticator, role):
    """The app of an ingest worker. Raises _Failed."""
    from goodput.aggregator.api.ingest_app import create_ingest_app
    from goodput.aggregator.memory_bound import TooSmall

    try:
        return create_ingest_app(role, authenticator, _memory_bound(arguments.memory))
    except TooSmall as error:
        raise _Failed(f"--memory: {error}", 2) from None


def grafana_url(text: str) -> str:
    """An argparse type: the URL of a Grafana, perhaps below a path, without a slash at its end."""
    service_url(text, "Grafana asks for one itself", "https://grafana.example.com")
    return text.rstrip("/")


def memory_bytes(text: str) -> int:
    """An argparse type: a number of bytes with an optional unit, K to T for powers of 1024."""
    found = re.fullmatch(
        r"(\d+(?:\.\d+)?) ?(?:([KMGT])(?:i?B|i)?|B)?", text.strip(), re.IGNORECASE | re.ASCII
    )
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a size such as 512MiB or 2G, or 0 for no bound")
    return int(float(found[1]) * 1024 ** " KMGT".index((found[2] or " ").upper()))


def _memory_bound(given: int | None):
    """The bound that was given, else one by the control group. Raises TooSmall."""
    import logging

    from goodput.aggregator.memory_bound import CGROUP_SHARE, MemoryBound, TooSmall, cgroup_limit_bytes

    if given == 0:
        return MemoryBound()
    try:
        if given is not None:
            return MemoryBound(given)
        limit = cgroup_limit_bytes()
        return MemoryBound(None if limit is None else int(CGROUP_SHARE * limit))
    except OSError as error:
        raise TooSmall(f"resident memory cannot be read here: {os_error_text(error)}") from None
    except TooSmall as error:
        if given is not None:
            raise
        logging.getLogger("goodput.aggregator").warning("the container's memory limit is not kept: %s", error)
        return MemoryBound()


def server_of(app):
    """The HTTP server of an aggregator's app, with its limits (aggregator/http/limits.py)."""
    import uvicorn

    from goodput.aggregator.http import limits
    from goodput.aggregator.http.connections import bounded_protocol

    authenticator = app.state.authenticator
    context = authenticator.ssl_context
    config = uvicorn.Config(
        app,
        http=bounded_protocol(authenticator.metrics, _connections_max(), app.state.pushes.begin_push),
        ws="none",
        # X-Forwarded-For can be sent by any client.
        proxy_headers=False,
        server_header=False,
        # Its warnings are about malformed requests, which are counted.
        log_level="error",
        access_log=False,
        timeout_keep_alive=limits.IDLE_SECONDS_MAX,
        timeout_graceful_shutdown=limits.SHUTDOWN_SECONDS_MAX,
        # Our own context: its certificate is replaced when the files change.
        ssl_context_factory=(lambda *_: context) if context else None,
    )
    return uvicorn.Server(config)


def _connections_max() -> int:
    """How many connections may be open beside other files."""
    return max(raise_file_limit(65_536) - 256, 64)


def listening_socket(host: str, port: int) -> socket.socket:
    """A listening socket; clients that connect before the app runs wait for it. Raises OSError."""
    from goodput.aggregator.http import limits

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY on connections of a socket with this protocol alone; without it an answer waits for the
    # client's delayed acknowledgement, some 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Inherited by every connection: the kernel closes one whose client reads nothing for so long.
        listener.setsockopt(
            socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(limits.UNREAD_SECONDS_MAX * 1000)
        )
        listener.bind((host, port))
        listener.listen(1024)
    except OSError:
        listener.close()
        raise
    return listener
