"""Prometheus's and Alertmanager's configuration for agents and an aggregator that require tokens over TLS."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from goodput.provision.hosts import ProvisionError
from goodput.up.files import HOST, PORTS, write_alertmanager, write_prometheus

SECURED = """\
    scheme: https
    authorization: {{credentials_file: /etc/goodput/{token}}}
    tls_config: {{ca_file: /etc/goodput/ca.crt}}
"""
FROM_FILE = '    file_sd_configs: [{files: ["/etc/goodput/nodes.yml"]}]\n'


def write_configuration(source: Path, folder: Path, head: str) -> None:
    """Write all files of Prometheus and Alertmanager into `folder`. `source` has `deploy/`.

    Raises UpError, ProvisionError.
    """
    path = write_prometheus(source, folder, PORTS)
    text = path.read_text(encoding="utf-8")
    targets = f'    static_configs:\n      - targets: ["{head}:{PORTS["aggregator"]}"]\n'
    text = _replaced(text, "node", SECURED.format(token="metrics-token") + FROM_FILE)
    text = _replaced(text, "aggregator", SECURED.format(token="read-token") + targets)
    path.write_text(text, encoding="utf-8")
    write_alertmanager(source, folder)
    for path in folder.iterdir():
        path.chmod(0o644)


def write_targets(path: Path, nodes: Iterable[str]) -> None:
    """Write the nodes' addresses in the format of file_sd_configs, which Prometheus reads again when they change."""
    lines = [f'    - "{name}:{PORTS["node"]}"\n' for name in sorted(nodes)]
    text = "# Written by `goodput provision`.\n" + ("- targets:\n" + "".join(lines) if lines else "[]\n")
    # Renamed into its place, so that Prometheus never reads half of it.
    part = path.with_name(f"{path.name}.new")
    part.write_text(text, encoding="utf-8")
    part.chmod(0o644)
    part.replace(path)


def _replaced(text: str, name: str, lines: str) -> str:
    """The configuration with other lines in place of a job's targets on loopback."""
    old = f'    static_configs:\n      - targets: ["{HOST}:{PORTS[name]}"]\n'
    if text.count(old) != 1:
        raise ProvisionError(f"prometheus.yml: expected one job with the target {HOST}:{PORTS[name]}")
    return text.replace(old, lines)
