"""The shipped configuration of Prometheus, Alertmanager and Grafana, adapted to other ports and folders.

Rules are copied unchanged; in the configuration only the default addresses are replaced. Rewritten at every start.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

HOST = "127.0.0.1"
# The default ports; in the shipped files they identify the servers.
PORTS = {"node": 9470, "aggregator": 9471, "prometheus": 9090, "alertmanager": 9093, "grafana": 3000}
_ADDRESS = re.compile(rf"{re.escape(HOST)}:({'|'.join(str(port) for port in PORTS.values())})\b")
_DASHBOARDS = "/etc/grafana/dashboards/goodput"


class UpError(Exception):
    """The stack cannot be started or has failed; the text says what, where and what to do."""


def shipped() -> Path:
    """The folder with `deploy/` and `dashboards/`. Raises UpError if there is none."""
    here = Path(__file__).resolve()
    # A checkout; the prefix of (user) site-packages; this interpreter's prefix.
    candidates = [
        here.parents[3],
        here.parents[5] / "share" / "goodput",
        Path(sys.prefix) / "share" / "goodput",
    ]
    for candidate in candidates:
        if (candidate / "deploy" / "prometheus" / "prometheus.yml").is_file():
            return candidate
    looked = ", ".join(dict.fromkeys(str(candidate / "deploy") for candidate in candidates))
    raise UpError(f"the shipped configuration is not installed (searched {looked}); run it from a checkout")


def rewritten(text: str, ports: Mapping[str, int]) -> str:
    """The text with the servers' default addresses replaced by their actual ones."""
    names = {port: name for name, port in PORTS.items()}

    def new(found: re.Match) -> str:
        port = int(found[1])
        return f"{HOST}:{ports.get(names[port], port)}"

    return _ADDRESS.sub(new, text)


def write_prometheus(source: Path, folder: Path, ports: Mapping[str, int]) -> Path:
    """Write prometheus.yml and its rule files into `folder`; returns the configuration's path.

    Raises UpError if the configuration does not scrape the agent and the aggregator.
    """
    text = (source / "deploy" / "prometheus" / "prometheus.yml").read_text(encoding="utf-8")
    for name in ("node", "aggregator"):
        if f"{HOST}:{PORTS[name]}" not in text:
            raise UpError(
                f"{source}/deploy/prometheus/prometheus.yml: no target {HOST}:{PORTS[name]} ({name})"
            )
    folder.mkdir(parents=True, exist_ok=True)
    for rule_file in re.findall(r"^\s*-\s+([\w.-]+\.yml)\s*(?:#.*)?$", text, re.M):
        shutil.copyfile(source / "deploy" / "prometheus" / rule_file, folder / rule_file)
    path = folder / "prometheus.yml"
    path.write_text(rewritten(text, ports), encoding="utf-8")
    return path


def write_alertmanager(source: Path, folder: Path) -> Path:
    """Write alertmanager.yml and its templates into `folder`; returns the path of the first."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("alertmanager.yml", "messages.tmpl"):
        shutil.copyfile(source / "deploy" / "prometheus" / name, folder / name)
    return folder / "alertmanager.yml"


def write_grafana(source: Path, folder: Path, ports: Mapping[str, int]) -> Path:
    """Write the provisioning folder with the data source's address and the dashboards' folder; returns its path."""
    boards = source / "dashboards" / "generated"
    provisioning = source / "deploy" / "grafana" / "provisioning"
    for path in sorted(provisioning.rglob("*.yml")):
        text = rewritten(path.read_text(encoding="utf-8"), ports).replace(_DASHBOARDS, str(boards))
        target = folder / path.relative_to(provisioning)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    return folder
