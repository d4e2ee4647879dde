"""docs/deploy.md names files, options and addresses that exist."""

import re

import pytest
import yaml
from support.deploy.deploy_words import DEPLOY, parsed
from support.servers import servers

TEXT = (servers.REPOSITORY / "docs" / "deploy.md").read_text()
BLOCKS = "\n".join(line[4:] for line in TEXT.splitlines() if line.startswith("    "))


def test_every_file_that_is_named_exists():
    named = set(re.findall(r"(?<![\w/])(?:deploy|docs)/[\w./*-]*[\w*]", TEXT))
    assert len(named) > 15
    for name in named - {"deploy/kubernetes/overlays/mine"}:
        assert list(servers.REPOSITORY.glob(name)), name


def test_every_goodput_command_exists():
    commands = re.findall(r"^(?:\S*/)?goodput ((?:up|run|node|serve|token|provision)\b[^#\n]*)", BLOCKS, re.M)
    assert len(commands) >= 2
    commands = [command.partition(">")[0] for command in commands if not command.startswith("up:")]
    commands += [f"serve {options}" for options in re.findall(r'GOODPUT_SERVE_OPTIONS="([^"]+)"', BLOCKS)]
    commands += [f"node {options}" for options in re.findall(r'GOODPUT_NODE_OPTIONS="([^"]+)"', BLOCKS)]
    commands += [
        f"up {option}" for option in re.findall(r"`(--(?:free-ports|json|without-prometheus))`", TEXT)
    ]
    assert len(commands) >= 6
    for command in commands:
        command = command.replace("$(sinfo -hN -o %N)", "node001 node002")
        parsed(*command.split())


@pytest.mark.parametrize("name", ["prolog.sh", "epilog.sh", "task_prolog.sh", "end.sh"])
def test_slurm_configuration_names_every_script(name):
    assert f"/etc/slurm/goodput/{name}\n" in BLOCKS
    assert (DEPLOY / "slurm" / name).stat().st_mode & 0o111


def test_documented_overlay_exists(tmp_path):
    text = BLOCKS[BLOCKS.index("apiVersion: kustomize") :]
    block = yaml.safe_load(text[: text.index("make kubernetes")])
    (resource,) = block["resources"]
    assert (
        (DEPLOY / "kubernetes" / "overlays" / "mine" / ".." / resource.removeprefix("../")).resolve().is_dir()
    )
    base = yaml.safe_load((DEPLOY / "kubernetes" / "base" / "kustomization.yaml").read_text())
    assert [image["name"] for image in block["images"]] == [image["name"] for image in base["images"]]


def test_playbook_gives_each_node_its_own_token():
    tokens, _, agents = yaml.safe_load((DEPLOY / "ansible" / "site.yml").read_text())
    made = [task for task in tokens["tasks"] if task.get("loop") == "{{ groups['goodput_nodes'] }}"]
    (command,) = [task["ansible.builtin.command"] for task in made]
    assert "--name {{ item }}" in command["cmd"] and "--tenant" in command["cmd"]
    assert command["creates"] == "{{ secrets.path }}/ingest-tokens/{{ item }}"
    copied = [
        one
        for task in agents["tasks"]
        for one in task.get("loop", ())
        if isinstance(one, dict) and one.get("to") == "ingest-token"
    ]
    assert copied == [{"name": "ingest-tokens/{{ inventory_hostname }}", "to": "ingest-token"}]


def test_documented_grafana_address_is_shipped():
    shipped = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    found = re.search(r"`global: external_labels: (\{.+?\})`", TEXT)[1]
    assert yaml.safe_load(found) == shipped["global"]["external_labels"]
    (rule,) = shipped["alerting"]["alert_relabel_configs"]
    assert rule == {"action": "labeldrop", "regex": "grafana|replica"}


def test_amtool_calls_name_alertmanager():
    """It has no default address."""
    pages = [*(servers.REPOSITORY / "docs").glob("*.md"), *(DEPLOY / "runbooks").glob("*.md")]
    requested = [line for page in pages for line in re.findall(r"`(amtool [^`]+)`", page.read_text())]
    assert len(requested) >= 2
    assert [line for line in requested if "--alertmanager.url=http" not in line] == []


def test_the_index_links_every_page():
    docs = servers.REPOSITORY / "docs"
    assert "docs/README.md" in (servers.REPOSITORY / "README.md").read_text()
    linked = set(re.findall(r"\]\(([^)#]+)", (docs / "README.md").read_text()))
    assert {page.name for page in docs.glob("*.md")} - {"README.md"} <= linked
