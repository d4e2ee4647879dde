"""The compose file and the Containerfiles, by their text: no container is built or run here."""

import re
import shlex
from pathlib import Path

import pytest
import yaml
from support.deploy.deploy_words import DEPLOY, parsed
from support.servers import servers

COMPOSE = DEPLOY / "compose" / "compose.yaml"
CONTAINERFILES = sorted((DEPLOY / "container").glob("*.Containerfile"))
INSTRUCTIONS = {
    "FROM",
    "WORKDIR",
    "COPY",
    "RUN",
    "ENV",
    "USER",
    "EXPOSE",
    "VOLUME",
    "ENTRYPOINT",
    "CMD",
    "ARG",
    "LABEL",
}
# Nothing of the host is mounted but these.
HOST_PATHS = {"/run/goodput", "/sys", "/proc"}


@pytest.fixture(scope="module")
def services() -> dict[str, dict]:
    return yaml.safe_load(COMPOSE.read_text())["services"]


def mounts(service: dict):
    """(source, target, mode) of each mount."""
    for text in service.get("volumes", ()):
        source, target, *mode = text.split(":")
        yield source, target, mode[0] if mode else "rw"


def test_every_mounted_file_exists_and_every_volume_is_declared(services):
    declared = yaml.safe_load(COMPOSE.read_text())["volumes"].keys()
    used = set()
    for service in services.values():
        for source, target, mode in mounts(service):
            assert target.startswith("/")
            if source.startswith("."):
                assert (COMPOSE.parent / source).resolve().exists(), source
                assert mode == "ro", f"{source} of the repository is mounted to be written"
            elif source.startswith("/"):
                assert source in HOST_PATHS
                assert mode == "ro" or source == "/run/goodput"
            else:
                used.add(source)
    assert used == set(declared)


def test_the_whole_stack_is_there_and_listens_on_loopback(services):
    assert set(services) == {
        "page-directory",
        *("node", "aggregator", "prometheus", "alertmanager", "grafana"),
    }
    for name, service in services.items():
        if name == "page-directory":
            assert service["network_mode"] == "none"
            continue
        assert service["network_mode"] == "host" and "ports" not in service
        options = " ".join([*service.get("command", ()), *service.get("environment", {}).values()])
        assert "127.0.0.1" in options and "0.0.0.0" not in options
    assert services["node"]["pid"] == "host"


def test_every_address_is_the_shipped_one(services):
    """So that the shipped configuration is right as it is."""
    shipped = (DEPLOY / "prometheus" / "prometheus.yml").read_text()
    source = (DEPLOY / "grafana" / "provisioning" / "datasources" / "goodput.yml").read_text()
    node, serve = (
        parsed("node", *services["node"]["command"]),
        parsed("serve", *services["aggregator"]["command"]),
    )
    addresses = ["{}:{}".format(*arguments.listen) for arguments in (node, serve)]
    assert all(f'"{address}"' in shipped for address in addresses)
    assert node.aggregator == f"http://{addresses[1]}"
    assert (
        '"127.0.0.1:9093"' in shipped
        and "--web.listen-address=127.0.0.1:9093" in services["alertmanager"]["command"]
    )
    assert "url: http://127.0.0.1:9090\n" in source
    assert "--web.listen-address=127.0.0.1:9090" in services["prometheus"]["command"]


def test_server_paths_lie_in_mounts(services):
    for name, paths in {
        "prometheus": ("/etc/goodput/prometheus.yml", "/prometheus"),
        "alertmanager": ("/etc/goodput/alertmanager.yml", "/alertmanager"),
        "grafana": ("/etc/grafana/dashboards/goodput", "/etc/grafana/provisioning"),
        "node": ("/host/sys", "/host/proc", "/run/goodput"),
        "aggregator": ("/var/lib/goodput/ledger.db",),
    }.items():
        found = {target: source for source, target, _ in mounts(services[name])}
        for path in paths:
            (target,) = [t for t in found if Path(path).is_relative_to(t)]
            if found[target].startswith("."):
                assert (COMPOSE.parent / found[target] / Path(path).relative_to(target)).exists()
            if name not in ("grafana",):
                assert path in " ".join(services[name]["command"])


def test_services_are_hardened(services):
    for name, service in services.items():
        assert service["cap_drop"] == ["ALL"] and service["read_only"] is True
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert "privileged" not in service
        assert ("user" in service) is (name == "page-directory")
        assert re.fullmatch(r"[\w./-]+:v?\d[\w.-]*", service["image"]), service["image"]
        if name != "page-directory":
            assert service["mem_limit"] and service["restart"] == "unless-stopped"
        if "build" in service:
            context = (COMPOSE.parent / service["build"]["context"]).resolve()
            assert context == servers.REPOSITORY
            assert (context / service["build"]["dockerfile"]).is_file()


def test_agent_yields_and_is_never_throttled(services):
    assert "cpus" not in services["node"] and services["node"]["cpu_shares"] < 1024


def instructions(path: Path) -> list[tuple[str, str]]:
    """(instruction, its text) of a Containerfile, continued lines joined."""
    lines = [line for line in path.read_text().splitlines() if line.strip() and not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [tuple(line.split(None, 1)) for line in joined.splitlines()]


@pytest.mark.parametrize("path", CONTAINERFILES, ids=lambda path: path.name)
def test_a_containerfile_is_well_formed_pinned_and_not_root(path):
    found = instructions(path)
    assert {word for word, _ in found} <= INSTRUCTIONS
    # One base image for both stages, so that one build argument pins it by digest.
    assert found[0][0] == "ARG" and re.fullmatch(r"PYTHON=python:\d+\.\d+\.\d+-\S+", found[0][1])
    assert [text.split()[0] for word, text in found if word == "FROM"] == ["${PYTHON}", "${PYTHON}"]
    last = max(i for i, (word, _) in enumerate(found) if word == "FROM")
    users = [text for word, text in found[last:] if word == "USER"]
    assert users == ["65532:65532"]
    command = [text for word, text in found[last:] if word == "ENTRYPOINT"]
    assert yaml.safe_load(command[0])[0] == "goodput"
    parsed(*yaml.safe_load(command[0])[1:])


@pytest.mark.parametrize("path", CONTAINERFILES, ids=lambda path: path.name)
def test_containerfile_copies_what_the_build_needs(path):
    copied = set()
    for word, text in instructions(path):
        if word != "COPY" or text.startswith("--from="):
            continue
        *sources, _ = shlex.split(text)
        for source in sources:
            assert (servers.REPOSITORY / source).exists(), source
            copied.add(source.rstrip("/"))
    project = (servers.REPOSITORY / "pyproject.toml").read_text()
    data = re.findall(r'^"share/goodput/[^"]*" = \["([^"*]+)/\*', project, re.M)
    assert data
    for folder in data:
        assert any(Path(folder).is_relative_to(source) for source in copied), folder
    (backend,) = re.findall(r'^backend-path = \["(.*)"\]', project, re.M)
    assert {"pyproject.toml", "README.md", "src", "exporters", backend} <= copied


@pytest.mark.parametrize("path", CONTAINERFILES, ids=lambda path: path.name)
def test_an_image_says_what_it_is_and_of_which_version(path):
    (labels,) = [text for word, text in instructions(path) if word == "LABEL"]
    found = {
        key.rpartition(".")[2]: value for key, _, value in (one.partition("=") for one in shlex.split(labels))
    }
    assert found.keys() == {"title", "description", "source", "licenses", "version", "revision"}
    project = (servers.REPOSITORY / "pyproject.toml").read_text()
    version, licence = (re.search(rf'^{name} = "(.*)"', project, re.M)[1] for name in ("version", "license"))
    assert ("ARG", f"VERSION={version}") in instructions(path)
    assert found["licenses"] == licence and found["source"] == "https://github.com/goodput-telemetry/goodput"


def test_the_context_of_a_build_is_what_it_copies():
    """Everything is left out but what a Containerfile copies: no history, no environment, no ledger."""
    lines = (servers.REPOSITORY / ".dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    copied = {
        source.rstrip("/")
        for path in CONTAINERFILES
        for word, text in instructions(path)
        if word == "COPY" and not text.startswith("--from=")
        for source in shlex.split(text)[:-1]
    }
    assert rules[0] == "*" and {rule[1:] for rule in rules if rule.startswith("!")} == copied
