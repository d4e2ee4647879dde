"""`goodput up`: run the whole stack on this machine."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from goodput.cli import fail
from goodput.rank_page import page

DESCRIPTION = """Start the aggregator, this machine's agent, Prometheus with the shipped rules, Alertmanager and, if
installed, Grafana with the shipped dashboards, all on loopback. Print their addresses when all are ready;
Ctrl-C ends them all."""
EPILOG = "example: goodput up --data /var/tmp/goodput     then: goodput run train.py"

NAMES = {
    "aggregator": "page and API",
    "node": "node agent",
    "prometheus": "Prometheus",
    "alertmanager": "Alertmanager",
    "grafana": "Grafana",
}


def add_options(parser) -> None:
    add = parser.add_argument
    add("--data", metavar="DIR", default=default_data(),
        help="folder for ledger, series, configuration and logs (default: %(default)s)")  # fmt: skip
    add(
        "--directory",
        default=page.default_directory(),
        help="folder of the rank pages (default: %(default)s)",
    )
    add("--free-ports", action="store_true",
        help="use any free ports (default: each server's standard port, or a free one if that is taken)")  # fmt: skip
    for name in ("prometheus", "alertmanager", "grafana"):
        add(f"--without-{name}", action="store_true", help=f"do not start {NAMES[name]}")
    add("--json", action="store_true", help="print the addresses as one line of JSON when all are ready")


def default_data(environ=os.environ) -> str:
    home = environ.get("XDG_DATA_HOME") or os.path.join(os.path.expanduser("~"), ".local", "share")
    return os.path.join(home, "goodput")


def call(arguments) -> int:
    """Run until SIGINT, SIGTERM or SIGHUP (0), or until a server fails (1)."""
    from goodput.up.files import UpError
    from goodput.up.server_plan import Options
    from goodput.up.stack import Stack

    options = Options(
        data=Path(arguments.data).expanduser().resolve(),
        pages=os.path.abspath(arguments.directory),
        prometheus=not arguments.without_prometheus,
        alertmanager=not arguments.without_alertmanager,
        grafana=not arguments.without_grafana,
        free_ports=arguments.free_ports,
    )
    try:
        with Stack(options) as stack:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, stack.stop)
            stack.start()
            if not stack.stopping:
                print(_as_json(stack) if arguments.json else _table(stack), flush=True)
            stack.watch()
    except UpError as error:
        return fail("up", error)
    if not arguments.json:
        print("goodput up: ended", flush=True)
    return 0


def _as_json(stack) -> str:
    found = {
        "urls": {server.name: server.url for server in stack.servers},
        "absent": stack.absent,
        "pids": stack.pids(),
        "data": str(stack.options.data),
        "pages": stack.options.pages,
    }
    return json.dumps(found)


def _table(stack) -> str:
    where = {server.name: server.url + server.note for server in stack.servers} | stack.absent
    rows = [(NAMES[name], where[name]) for name in NAMES]
    rows += [("data", f"{stack.options.data} (logs in logs/)"), ("rank pages", stack.options.pages)]
    lines = ["goodput up: all servers are ready; Ctrl-C ends them"]
    lines += [f"  {name:<14}{text}" for name, text in rows]
    return "\n".join(lines)
