"""The shipped configuration with other addresses, otherwise unchanged."""

import shutil

import pytest
import yaml
from support.servers import servers

from goodput.up import files, server_plan

PORTS = {"node": 1, "aggregator": 9470, "prometheus": 3, "alertmanager": 4, "grafana": 5}


def test_addresses_are_replaced_once_and_by_name():
    # The aggregator's new port is the agent's old one, which must not be replaced again.
    text = 'targets: ["127.0.0.1:9471", "127.0.0.1:9470"] # 127.0.0.1:94700 and 127.0.0.1:9100 stay'
    want = 'targets: ["127.0.0.1:9470", "127.0.0.1:1"] # 127.0.0.1:94700 and 127.0.0.1:9100 stay'
    assert files.rewritten(text, PORTS) == want


def test_omitted_server_keeps_its_address():
    assert files.rewritten("127.0.0.1:9093 127.0.0.1:9470", {"node": 7}) == "127.0.0.1:9093 127.0.0.1:7"


def test_prometheus_configuration_gets_addresses_and_rule_files(tmp_path):
    path = files.write_prometheus(servers.REPOSITORY, tmp_path, PORTS)
    shipped = yaml.safe_load((servers.RULES / "prometheus.yml").read_text())
    written = yaml.safe_load(path.read_text())
    targets = {
        job["job_name"]: [t for c in job["static_configs"] for t in c["targets"]]
        for job in written["scrape_configs"]
    }
    assert targets["goodput-node"] == ["127.0.0.1:1"]
    assert targets["goodput-aggregator"] == ["127.0.0.1:9470"]
    assert "127.0.0.1:4" in str(written["alerting"])
    for name in shipped["rule_files"]:
        assert (tmp_path / name).read_bytes() == (servers.RULES / name).read_bytes()
    # Links of alerts lead to where Grafana is now, and alerts do not change their names with it.
    assert written["global"].pop("external_labels") == {"grafana": "http://127.0.0.1:5"}
    assert shipped["global"].pop("external_labels") == {"grafana": "http://127.0.0.1:3000"}
    assert written["alerting"]["alert_relabel_configs"] == [
        {"action": "labeldrop", "regex": "grafana|replica"}
    ]
    for key in ("global", "rule_files"):
        assert written[key] == shipped[key]


def test_configuration_without_our_targets_is_refused(tmp_path):
    source = tmp_path / "deploy" / "prometheus"
    shutil.copytree(servers.RULES, source)
    text = (source / "prometheus.yml").read_text()
    (source / "prometheus.yml").write_text(text.replace(":9470", ":9999"))
    with pytest.raises(files.UpError, match=r"prometheus\.yml: no target 127\.0\.0\.1:9470 \(node\)"):
        files.write_prometheus(tmp_path, tmp_path / "out", PORTS)


def test_taken_default_port_is_replaced(monkeypatch):
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        port, (other,) = taken.getsockname()[1], servers.free_ports(1)
        monkeypatch.setitem(server_plan.PORTS, "node", port)
        monkeypatch.setitem(server_plan.PORTS, "aggregator", other)
        chosen = server_plan.choose_ports(["node", "aggregator"], free=False)
    assert chosen["node"] not in (port, other)
    assert chosen["aggregator"] == other


@pytest.mark.parametrize(
    ("there", "note"),
    [((), ""), (("ui",), "no web application"), (("ui", "ui/index.html"), "")],
    ids=["the makers'", "Debian's", "Debian's, built"],
)
def test_an_alertmanager_without_pages_is_reported(tmp_path, monkeypatch, there, note):
    for name in there:
        (tmp_path / name).mkdir()
    monkeypatch.setattr(server_plan, "_DEBIAN_UI", tmp_path / "ui")
    options = server_plan.Options(data=tmp_path / "data", pages="pages")
    server = server_plan._alertmanager(options, servers.REPOSITORY, "alertmanager", PORTS)
    assert note in server.note and bool(note) == bool(server.note)
    assert server.url == "http://127.0.0.1:4/"
