"""deploy/prometheus/agent.yml with the real programs: samples are pushed to a Prometheus that nobody lets in."""

import shutil
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml
from support.integration.pushing_out import SENDERS, ReceivingPrometheus
from support.node.agents import agent_on
from support.node.node_tree import Clock, write_tree
from support.servers import servers

from goodput_exporters.server.server import Server

SECONDS_MAX = 60
CONFIGURATION = yaml.safe_load((servers.RULES / "agent.yml").read_text())


@pytest.fixture(scope="module")
def receiving(tmp_path_factory):
    servers.require("prometheus")
    with ReceivingPrometheus(tmp_path_factory.mktemp("receiving")) as prometheus:
        yield prometheus


@pytest.fixture
def agent(tmp_path):
    write_tree(tmp_path)
    (tmp_path / "pages").mkdir()
    agent = agent_on(tmp_path, Clock())
    server = Server(agent.exposition, agent.health)
    server.start()
    yield server
    server.stop()


@pytest.mark.parametrize("program", SENDERS)
def test_pushed_samples_arrive_with_their_labels(program, receiving, agent, tmp_path):
    if shutil.which(program) is None:
        pytest.skip(f"not installed: {program} (Debian packages prometheus, victoria-metrics)")
    config = {**CONFIGURATION, "global": {**CONFIGURATION["global"], "scrape_interval": "1s"}}
    config["global"] |= {"scrape_timeout": "1s", "external_labels": {"cluster": program}}
    node, _ = config["scrape_configs"]
    node["static_configs"] = [{"targets": [urlsplit(agent.url).netloc]}]
    config["scrape_configs"] = [node]
    (write,) = config["remote_write"]
    write["url"] = f"{receiving.url}/api/v1/write"
    path = tmp_path / "agent.yml"
    path.write_text(yaml.safe_dump(config))
    with SENDERS[program](tmp_path, path, write["url"]):
        cluster = f'cluster="{program}", job="goodput-node"'
        (info,) = receiving.wait_for(f"goodput_node_info{{{cluster}}}", SECONDS_MAX)
        assert (info.labels["host"], info.value) == ("n0", 1)
        assert receiving.value(f"up{{{cluster}}}") == 1
        cpus = f"goodput_host_cpus{{{cluster}}}"
        text = agent.exposition().decode()
        assert f"goodput_host_cpus {receiving.value(cpus)}" in text


def test_job_names_are_those_of_the_rules():
    shipped = yaml.safe_load((servers.RULES / "prometheus.yml").read_text())["scrape_configs"]
    names = {job["job_name"] for job in shipped if job["job_name"].startswith("goodput-")}
    assert {job["job_name"] for job in CONFIGURATION["scrape_configs"]} == names
    # The documented commands are those that are tested.
    text = Path(servers.RULES / "agent.yml").read_text()
    for program, sender in SENDERS.items():
        for option in sender.options:
            assert f" {option}" in text.split(program, 1)[1]
