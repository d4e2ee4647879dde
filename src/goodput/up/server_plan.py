"""The servers of `goodput up`: the command, readiness path and port of each. All bind to loopback; nothing is started here."""

from __future__ import annotations

import shutil
import socket
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from goodput.up import files
from goodput.up.files import HOST, PORTS, UpError

INSTALL = {
    "prometheus": "apt install prometheus (Debian, Ubuntu), or https://prometheus.io/download/",
    "alertmanager": "apt install prometheus-alertmanager (Debian, Ubuntu), or https://prometheus.io/download/",
    "grafana": "https://grafana.com/grafana/download",
}
# Debian renames Alertmanager's program; Grafana renamed its own.
BINARIES = {
    "prometheus": ("prometheus",),
    "alertmanager": ("prometheus-alertmanager", "alertmanager"),
    "grafana": ("grafana", "grafana-server"),
}
SERVED = {"aggregator": "/", "node": "/metrics"}
_DEBIAN_UI = Path("/usr/share/prometheus/alertmanager/ui")
_GRAFANA_HOMES = ("/usr/share/grafana", "/usr/local/share/grafana")


@dataclass(frozen=True)
class Options:
    """Which servers to start, and where. `data` is absolute."""

    data: Path
    pages: str
    prometheus: bool = True
    alertmanager: bool = True
    grafana: bool = True
    free_ports: bool = False


@dataclass(frozen=True)
class Server:
    """One server: its command, environment, port, and the path that answers 200 when it is ready."""

    name: str
    command: list[str]
    port: int
    health: str
    environ: dict[str, str] = field(default_factory=dict)
    after: str = ""  # the part that must be ready before this one starts
    note: str = ""  # shown beside the address

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}{SERVED.get(self.name, '/')}"

    @property
    def health_url(self) -> str:
        return f"http://{HOST}:{self.port}{self.health}"


def find(name: str) -> str | None:
    """The path of a server's program, None if it is not installed."""
    return next((path for path in map(shutil.which, BINARIES[name]) if path), None)


def choose_ports(names: list[str], free: bool) -> dict[str, int]:
    """A port for each server: its default one if that is free, else any free one.

    Another program may take it before the server binds it; the server then ends with an error.
    """
    with ExitStack() as held:
        sockets = {name: held.enter_context(_bound(0 if free else PORTS[name])) for name in names}
        return {name: one.getsockname()[1] for name, one in sockets.items()}


def _bound(port: int) -> socket.socket:
    """A socket on this port of loopback, or on any free port if it is taken."""
    for wanted in (port, 0):
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((HOST, wanted))
            return one
        except OSError:
            one.close()
    raise UpError(f"no free port on {HOST}")


def plan(options: Options) -> tuple[list[Server], dict[str, str]]:
    """The servers to start, and the reason for each that is not. Writes their configuration. Raises UpError."""
    source = files.shipped()
    programs, absent = _programs(options)
    ports = choose_ports(["aggregator", "node", *programs], options.free_ports)
    builders = {"alertmanager": _alertmanager, "prometheus": _prometheus, "grafana": _grafana}
    servers = [
        build(options, source, programs[name], ports) for name, build in builders.items() if name in programs
    ]
    return [
        _aggregator(options, ports, has_grafana="grafana" in programs),
        *servers,
        _node(options, ports),
    ], absent


def _programs(options: Options) -> tuple[dict[str, str], dict[str, str]]:
    """(program by server, reason by server that is not started). Raises UpError if a program is missing."""
    programs: dict[str, str] = {}
    absent: dict[str, str] = {}
    for name in ("prometheus", "alertmanager", "grafana"):
        # The other two need Prometheus.
        switch = name if not getattr(options, name) else None if options.prometheus else "prometheus"
        if switch:
            absent[name] = f"not started (--without-{switch})"
        elif path := find(name):
            programs[name] = path
        elif name == "grafana":
            absent[name] = f"not installed: {INSTALL[name]}"
        else:
            raise UpError(
                f"{name} is not installed: no program {' or '.join(BINARIES[name])} on PATH.\n"
                f"  install it: {INSTALL[name]}\n  or start without it: goodput up --without-{name}"
            )
    return programs, absent


def _aggregator(options: Options, ports: Mapping[str, int], has_grafana: bool) -> Server:
    command = [sys.executable, "-m", "goodput", "serve", "--listen", f"{HOST}:{ports['aggregator']}"]
    command += ["--ledger", f"sqlite:///{options.data / 'ledger.db'}"]
    command += ["--grafana", f"http://{HOST}:{ports['grafana']}"] if has_grafana else []
    return Server("aggregator", command, ports["aggregator"], "/healthz")


def _node(options: Options, ports: Mapping[str, int]) -> Server:
    command = [sys.executable, "-m", "goodput", "node", "--listen", f"{HOST}:{ports['node']}"]
    command += ["--directory", options.pages, "--aggregator", f"http://{HOST}:{ports['aggregator']}"]
    # Otherwise its first push fails and its log begins with an error.
    return Server("node", command, ports["node"], "/healthz", after="aggregator")


def _prometheus(options: Options, source: Path, program: str, ports: Mapping[str, int]) -> Server:
    config = files.write_prometheus(source, options.data / "etc" / "prometheus", ports)
    command = [
        program,
        f"--config.file={config}",
        f"--storage.tsdb.path={_made(options.data / 'prometheus')}",
        f"--web.listen-address={HOST}:{ports['prometheus']}",
        # For links in alerts; the default is this host's name, which does not listen.
        f"--web.external-url=http://{HOST}:{ports['prometheus']}/",
        "--log.level=warn",
    ]
    return Server("prometheus", command, ports["prometheus"], "/-/ready")


def _alertmanager(options: Options, source: Path, program: str, ports: Mapping[str, int]) -> Server:
    config = files.write_alertmanager(source, options.data / "etc" / "alertmanager")
    command = [
        program,
        f"--config.file={config}",
        f"--storage.path={_made(options.data / 'alertmanager')}",
        f"--web.listen-address={HOST}:{ports['alertmanager']}",
        f"--web.external-url=http://{HOST}:{ports['alertmanager']}/",
        "--cluster.listen-address=",  # Empty: no cluster, no port for peers.
        "--log.level=warn",
    ]
    # Debian's package lacks the web application.
    bare = _DEBIAN_UI.is_dir() and not (_DEBIAN_UI / "index.html").exists()
    note = " (Debian's package has no web application; use amtool)" if bare else ""
    return Server("alertmanager", command, ports["alertmanager"], "/-/ready", note=note)


def _grafana(options: Options, source: Path, program: str, ports: Mapping[str, int]) -> Server:
    """Every local user may view; changes need Grafana's admin login."""
    folder = _made(options.data / "grafana")
    provisioning = files.write_grafana(source, options.data / "etc" / "grafana" / "provisioning", ports)
    command = [program] if Path(program).name == "grafana-server" else [program, "server"]
    beside = str(Path(program).resolve().parents[1])
    homes = [home for home in (*_GRAFANA_HOMES, beside) if (Path(home) / "public").is_dir()]
    command += ["--homepath", homes[0]] if homes else []
    environ = {
        "GF_SERVER_HTTP_ADDR": HOST,
        "GF_SERVER_HTTP_PORT": str(ports["grafana"]),
        "GF_PATHS_DATA": str(folder),
        "GF_PATHS_LOGS": str(folder / "log"),
        "GF_PATHS_PLUGINS": str(folder / "plugins"),
        "GF_PATHS_PROVISIONING": str(provisioning),
        "GF_AUTH_ANONYMOUS_ENABLED": "true",
        "GF_AUTH_ANONYMOUS_ORG_ROLE": "Viewer",
        "GF_ANALYTICS_REPORTING_ENABLED": "false",
        "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
        "GF_ANALYTICS_CHECK_FOR_PLUGIN_UPDATES": "false",
    }
    return Server("grafana", command, ports["grafana"], "/api/health", environ)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
