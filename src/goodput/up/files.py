"""The shipped configuration of Prometheus, Alertmanager and Grafana, written anew for other ports and folders.

In: the folder that holds `deploy/` and `dashboards/` (a checkout, or share/goodput of an installation), and where
each server is to listen. Out: files in the data folder, made new at every start. The rules are copied as they are;
in the configuration the default addresses alone are replaced, so what runs here is what is deployed elsewhere.

It does not know which servers there are beyond their default addresses, nor how they are started.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

HOST = "127.0.0.1"
# What the shipped files say; the address is the name of the server in them.
PORTS = {"node": 9470, "aggregator": 9471, "prometheus": 9090, "alertmanager": 9093, "grafana": 3000}
_ADDRESS = re.compile(rf"{re.escape(HOST)}:({'|'.join(str(port) for port in PORTS.values())})\b")
_DASHBOARDS = "/etc/grafana/dashboards/goodput"


class UpError(Exception):
    """The stack cannot be started or did not go on; the text says what, where and what to do."""


def shipped() -> Path:
    """The folder with `deploy/` and `dashboards/`. Raises UpError where there is none."""
    here = Path(__file__).resolve()
    # A checkout; the prefix of site-packages, also of a user's; this interpreter's.
    candidates = [
        here.parents[3],
        here.parents[5] / "share" / "goodput",
        Path(sys.prefix) / "share" / "goodput",
    ]
    for candidate in candidates:
        if (candidate / "deploy" / "prometheus" / "prometheus.yml").is_file():
            return candidate
    looked = ", ".join(dict.fromkeys(str(candidate / "deploy") for candidate in candidates))
    raise UpError(f"the shipped configuration is not installed: looked in {looked}. Run it from a checkout.")


def rewritten(text: str, ports: Mapping[str, int]) -> str:
    """The text with each default address replaced by that of the server's port; others stay."""
    names = {port: name for name, port in PORTS.items()}

    def new(found: re.Match) -> str:
        port = int(found[1])
        return f"{HOST}:{ports.get(names[port], port)}"

    return _ADDRESS.sub(new, text)


def write_prometheus(source: Path, folder: Path, ports: Mapping[str, int]) -> Path:
    """prometheus.yml and the rules that it names, in `folder`; the configuration's path.

    Raises UpError where the configuration does not scrape the agent and the aggregator: what is started
    would run unseen.
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
    """alertmanager.yml in `folder`; its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "alertmanager.yml"
    shutil.copyfile(source / "deploy" / "prometheus" / "alertmanager.yml", path)
    return path


def write_grafana(source: Path, folder: Path, ports: Mapping[str, int]) -> Path:
    """The provisioning folder, with the data source's address and the dashboards where they lie; its path."""
    boards = source / "dashboards" / "generated"
    provisioning = source / "deploy" / "grafana" / "provisioning"
    for path in sorted(provisioning.rglob("*.yml")):
        text = rewritten(path.read_text(encoding="utf-8"), ports).replace(_DASHBOARDS, str(boards))
        target = folder / path.relative_to(provisioning)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    return folder
