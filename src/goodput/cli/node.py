"""`goodput node`: the agent of one node. It reads rank pages, serves /metrics and pushes to an aggregator.

In: the command line. Out: exit status 0 (stopped, or `--once` printed), 1 (it failed), 2 (a wrong call).
The agent itself is goodput_exporters, imported only when the command runs.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from urllib.parse import urlsplit

from goodput.access.options import add_options
from goodput.cli import loading
from goodput.rank_page import page

DEFAULT_ADDRESS = "127.0.0.1:9470"
SECONDS_MAX = 86_400.0
GPUS_MAX = 256
GPU_DRIVERS = ("nvml", "dcgm", "amd", "dcgm_endpoint")
EXAMPLE = """examples:
  goodput node                                             serve what this node's ranks report
  goodput node --aggregator https://goodput.internal:9471 --token-file FILE   and push it
  goodput node --aggregator URL --py-spy                   and the stack of a rank that hangs, when asked
  goodput node --once                                      print one exposition and exit
  goodput node --check                                     what can be seen on this node, what not, and why
"""


def add_parser(subparsers) -> None:
    parser = subparsers.add_parser(
        "node",
        help="run the agent of this node",
        description="Read this node's rank pages and counters, serve them, push them to the aggregator.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--directory", type=given, default=page.default_directory(),
        help="of the rank pages (default: %(default)s)")  # fmt: skip
    add("--listen", metavar="ADDRESS:PORT", type=address, default=DEFAULT_ADDRESS,
        help="where to serve; port 0 takes a free one (default: %(default)s)")  # fmt: skip
    add("--aggregator", metavar="URL", type=aggregator, default=os.environ.get("GOODPUT_AGGREGATOR") or None,
        help="where to push (default: $GOODPUT_AGGREGATOR, else nowhere)")  # fmt: skip
    for option, text in FILES.items():
        variable = variable_of(option)
        add(option, metavar="FILE", type=given, default=os.environ.get(variable) or None,
            help=f"{text} (default: ${variable})")  # fmt: skip
    add("--interval", metavar="SECONDS", type=interval, default=1.0,
        help="between looks (default: %(default)s)")  # fmt: skip
    add("--push-interval", metavar="SECONDS", type=interval, default=5.0,
        help="between pushes (default: %(default)s)")  # fmt: skip
    add("--grace", metavar="SECONDS", type=seconds, default=60.0,
        help="how long a dead rank's page is kept (default: %(default)s)")  # fmt: skip
    add("--py-spy", action="store_true",
        help="when the aggregator finds that a rank of this node hangs, run `py-spy dump` on its process and send "
        "the stack (function names, files and lines; no variables, no command line). Needs py-spy on this node "
        "(pip install 'goodput-telemetry[stacks]') and the right to trace the process: root, CAP_SYS_PTRACE, or "
        "the same user with kernel.yama.ptrace_scope=0 (default: off)")  # fmt: skip
    add("--sysfs", metavar="ROOT", type=given, default="/sys", help="default: %(default)s")
    add("--procfs", metavar="ROOT", type=given, default="/proc", help="default: %(default)s")
    add("--path", metavar="DIR", type=given, action="append", default=[],
        help="watch the file system of this directory (datasets, checkpoints); may be given several times. "
        "Those of the network are watched anyway")  # fmt: skip
    add(
        "--gpus",
        metavar="N",
        type=count,
        help="GPUs that this node should have (default: those on the PCI bus)",
    )
    add("--gpu-interval", metavar="SECONDS", type=gpu_interval, default=1.0,
        help="between samples of the GPUs, 0.1 to 60 (default: %(default)s)")  # fmt: skip
    add("--gpu-driver", metavar="NAME", action="append", choices=GPU_DRIVERS,
        help="ask only these for GPUs: nvml, dcgm, amd, dcgm_endpoint (default: all there are)")  # fmt: skip
    add("--dcgm-exporter", metavar="URL", type=aggregator,
        help="the /metrics of a dcgm-exporter, where GPUs are not to be asked directly")  # fmt: skip
    add("--once", action="store_true", help="print one exposition and exit; changes nothing on the node")
    add("--check", action="store_true",
        help="print what can be seen on this node, what not and why, and exit (1 if something failed)")  # fmt: skip
    add("--json", action="store_true", help="with --check: as JSON")
    add_options(parser.add_argument_group("who may read /metrics here").add_argument)
    parser.set_defaults(call=call)


# Files and never their content: a command line can be read by everybody on the node.
FILES = {
    "--token-file": "for the aggregator: a file with an ingest token, read anew for each push",
    "--ca-file": "for an aggregator with https: the authorities to believe (PEM), instead of the usual ones",
    "--client-cert": "for an aggregator that asks for certificates: this node's (PEM, with its chain)",
    "--client-key": "the key of --client-cert (PEM, not encrypted)",
}


def given(text: str) -> str:
    """A path. An empty one is a variable that was not set, and would mean this folder, or none."""
    if not text.strip():
        raise argparse.ArgumentTypeError("it is empty; leave the option out for its default")
    return text


def address(text: str) -> tuple[str, int]:
    """(host, port) from HOST:PORT or [IPV6]:PORT."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise argparse.ArgumentTypeError(f"{text!r}: an IPv6 address goes in brackets, as in [::1]:9470")
    if not colon or not (port.isascii() and port.isdigit() and int(port[:6]) < 65536):
        raise argparse.ArgumentTypeError(f"{text!r}: want ADDRESS:PORT with a port of 0 to 65535")
    return host, int(port)


def aggregator(text: str) -> str:
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port)
    except ValueError:
        usable = False
    if usable and (parts.username or parts.password):
        raise argparse.ArgumentTypeError("a password in an address is seen by all; want --token-file")
    if not usable or parts.query or parts.fragment:
        raise argparse.ArgumentTypeError(f"{text!r}: want a URL as in http://goodput.internal:9471")
    return text


def seconds(text: str) -> float:
    """A finite number of seconds from 0 to a day."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= SECONDS_MAX:
        raise argparse.ArgumentTypeError(f"{text!r}: want seconds, 0 to {SECONDS_MAX:.0f}")
    return value


def interval(text: str) -> float:
    value = seconds(text)
    if value < 0.01:
        raise argparse.ArgumentTypeError(f"{text!r}: want at least 0.01 seconds")
    return value


def count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text[:6]) <= GPUS_MAX):
        raise argparse.ArgumentTypeError(f"{text!r}: want a number of GPUs, 0 to {GPUS_MAX}")
    return int(text)


def drivers(arguments) -> tuple[str, ...] | None:
    """Which GPU drivers to ask. On another tree than this node's the drivers of this node have nothing to say."""
    if arguments.gpu_driver:
        return tuple(dict.fromkeys(arguments.gpu_driver))
    if os.path.realpath(arguments.sysfs) != "/sys":
        return ("amd", "dcgm_endpoint")
    return None


def gpu_interval(text: str) -> float:
    value = seconds(text)
    if not 0.1 <= value <= 60:
        raise argparse.ArgumentTypeError(f"{text!r}: want 0.1 to 60 seconds")
    return value


def call(arguments) -> int:
    """Run the agent until SIGTERM or SIGINT."""
    if arguments.once and arguments.check:
        _complain("--once and --check are two different things")
        return 2
    if arguments.json and not arguments.check:
        _complain("--json goes with --check; --once prints the text format of Prometheus")
        return 2
    try:
        with loading():
            import logging

            from goodput_exporters.agent import Agent
            from goodput_exporters.push.credentials import Credentials
            from goodput_exporters.push.stacks import find_py_spy
            from goodput_exporters.server.authentication import Gate
    except ImportError as error:
        _complain(f"{error}. The node agent needs: pip install 'goodput-telemetry[node]'")
        return 1
    logging.basicConfig(level=logging.WARNING, format="goodput node: %(message)s", stream=sys.stderr)
    _tell_of_empty_variables(arguments)
    credentials = Credentials(*(getattr(arguments, name[2:].replace("-", "_")) for name in FILES))
    try:
        _check_files(arguments, credentials)
        gate = Gate() if arguments.once or arguments.check else _gate(arguments)
    except ValueError as error:
        _complain(str(error))
        return 2
    if arguments.py_spy:
        if not arguments.aggregator:
            _complain("--py-spy needs --aggregator: it is the one that asks for stacks")
            return 2
        if find_py_spy() is None:
            _complain(
                "py-spy is not installed, so no stack will be had: pip install 'goodput-telemetry[stacks]'"
            )
    agent = Agent(
        arguments.directory,
        aggregator=None if arguments.once or arguments.check else arguments.aggregator,
        credentials=credentials,
        gate=gate,
        interval_seconds=arguments.interval,
        push_interval_seconds=arguments.push_interval,
        grace_seconds=arguments.grace,
        py_spy=arguments.py_spy,
        sysfs=arguments.sysfs,
        procfs=arguments.procfs,
        gpus_expected=arguments.gpus,
        gpu_interval_seconds=arguments.gpu_interval,
        dcgm_endpoint=arguments.dcgm_exporter or "",
        drivers=drivers(arguments),
        paths=tuple(arguments.path),
    )
    if arguments.check:
        return _check(agent, arguments, credentials)
    if arguments.once:
        sys.stdout.write(agent.once())
        return 0
    return _run(agent, arguments)


def variable_of(option: str) -> str:
    return f"GOODPUT_{option.strip('-').replace('-', '_').upper()}"


def _tell_of_empty_variables(arguments) -> None:
    """An empty variable stands for none, as in a container's environment; somebody may have meant another."""
    for option in ("--aggregator", *FILES):
        if (
            os.environ.get(variable_of(option)) == ""
            and getattr(arguments, option[2:].replace("-", "_")) is None
        ):
            _complain(f"{variable_of(option)} is empty, and taken as not set")


def _check_files(arguments, credentials) -> None:
    """Raise ValueError for what the agent could not show the aggregator, and for an address that is not safe."""
    from goodput.access.listening import check
    from goodput.access.token_file import warning
    from goodput_exporters.push.credentials import Unreachable

    if bool(credentials.client_cert) != bool(credentials.client_key):
        raise ValueError("--client-cert and --client-key go together")
    for path in filter(None, (credentials.token_file, credentials.client_key)):
        if problem := warning(path):
            _complain(f"warning: {problem}")
    try:
        credentials.headers()
        if (arguments.aggregator or "").startswith("https:"):
            credentials.context()
    except Unreachable as error:
        raise ValueError(str(error)) from None
    if not arguments.once:
        check(arguments, arguments.listen[0], only_metrics=True)


def _gate(arguments):
    """Who may read /metrics. Raises ValueError."""
    from goodput.access.listening import certificate
    from goodput.access.token_cache import Keeper
    from goodput.access.token_file import FileError
    from goodput_exporters.server.authentication import Gate

    try:
        keeper = Keeper(arguments.tokens) if arguments.tokens and not arguments.metrics_public else None
    except FileError as error:
        raise ValueError(str(error)) from None
    return Gate(
        keeper, certificate(arguments), any_host=bool(arguments.client_ca or arguments.metrics_public)
    )


def _check(agent, arguments, credentials) -> int:
    import json

    from goodput_exporters.check import check, text

    findings = check(agent, arguments.listen, arguments.aggregator, credentials)
    if arguments.json:
        print(json.dumps([finding._asdict() for finding in findings], indent=2))
    else:
        print(text(findings, sys.stdout.isatty() and not os.environ.get("NO_COLOR")))
    return 1 if any(finding.status == "failed" for finding in findings) else 0


def _run(agent, arguments) -> int:
    import signal
    import threading

    from goodput_exporters.directory_lock import Refused
    from goodput_exporters.server.server import Server

    _allow_files()
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    try:
        server = Server(agent.exposition, agent.health, arguments.listen, agent.gate)
    except (OSError, OverflowError) as error:
        _complain(f"cannot listen on {arguments.listen[0]}:{arguments.listen[1]}: {error}")
        return 1
    try:
        agent.start()
        server.start()
        _collect_seldom()
        where = f"pushes to {arguments.aggregator}" if arguments.aggregator else "pushes nowhere"
        print(f"goodput node: reads {arguments.directory}, serves {server.url}/metrics, {where}", flush=True)
        while not stopping.wait(0.5) and agent.failure is None:
            pass
    except Refused as refusal:
        agent.failure = str(refusal)
    finally:
        server.stop()
        agent.stop()
    if agent.failure:
        _complain(agent.failure)
        return 1
    return 0


def _collect_seldom() -> None:
    """Spare each scrape, which makes thousands of short-lived objects, the search for cycles among all the others."""
    import gc

    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)


def _allow_files() -> None:
    """One descriptor per page: raise the soft limit, which is 1024 on most systems, towards the hard one."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 8192 if hard == resource.RLIM_INFINITY else min(8192, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _complain(text: str) -> None:
    print(f"goodput node: {text}", file=sys.stderr)
