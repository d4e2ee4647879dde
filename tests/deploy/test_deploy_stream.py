"""Several aggregators over a stream: the Kubernetes component, and the configuration of NATS as nats-server reads it."""

import re
import shlex
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml
from support.deploy.deploy_words import DEPLOY, parsed
from support.deploy.kustomize import copied_tree, kustomize
from support.deploy.nats_config import checked_config
from support.servers import servers

from goodput.aggregator.stream import options
from goodput.cli.serve import memory_bytes

NAME = "app.kubernetes.io/name"


@pytest.fixture(scope="module")
def objects(tmp_path_factory) -> dict[tuple[str, str], dict]:
    """By kind and name what kustomize makes of an overlay with the component."""
    tree = copied_tree(tmp_path_factory.mktemp("tree"))
    folder = tree / "deploy" / "kubernetes" / "overlays" / "replicated"
    folder.mkdir()
    components = [f"../../components/{name}" for name in ("postgresql", "stream", "closed-ingress")]
    overlay = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": "goodput",
    }
    overlay |= {"resources": ["../prometheus-operator"], "components": components}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    documents = [document for document in yaml.safe_load_all(kustomize(folder)) if document]
    return {(one["kind"], one["metadata"]["name"]): one for one in documents}


def pod(objects, kind: str, name: str) -> dict:
    return objects[kind, name]["spec"]["template"]["spec"]


def serving(objects, kind: str, name: str):
    """The options of `goodput serve` there."""
    (container,) = pod(objects, kind, name)["containers"]
    return parsed("serve", *container["args"])


def test_rendered_objects_are_valid(objects):
    import kubernetes_validate

    for document in objects.values():
        if "monitoring.coreos.com" not in document["apiVersion"]:
            kubernetes_validate.validate(document, "1.31", strict=True)
            assert (
                document["kind"] in ("Namespace", "PriorityClass")
                or document["metadata"]["namespace"] == "goodput"
            )


def test_workers_and_aggregators_share_a_stream_and_a_ledger(objects, monkeypatch):
    monkeypatch.setattr(options, "login_of", lambda file: {})
    monkeypatch.setattr("ssl.create_default_context", lambda cafile: None)
    worker = serving(objects, "Deployment", "goodput-ingest")
    aggregator = serving(objects, "StatefulSet", "goodput-aggregator")
    for one in (worker, aggregator):
        options.check_stream_options(one)
    assert (worker.role, aggregator.role) == ("ingest", "aggregate")
    for name in (
        "stream",
        "partitions",
        "stream_replicas",
        "stream_bytes",
        "stream_credentials",
        "stream_ca",
        "tokens",
    ):
        assert getattr(worker, name) == getattr(aggregator, name), name
    servers_ = objects["StatefulSet", "goodput-nats"]["spec"]
    hosts = [f"goodput-nats-{at}.{servers_['serviceName']}.goodput.svc" for at in range(servers_["replicas"])]
    ((*urls,),) = worker.stream
    assert [urlsplit(url).hostname for url in urls] == hosts and servers_[
        "replicas"
    ] == worker.stream_replicas
    assert all(url.startswith("tls://") for url in urls)
    (agent,) = pod(objects, "DaemonSet", "goodput-node")["containers"]
    assert "--aggregator=https://goodput-ingest.goodput.svc:9471" in agent["args"]
    for kind, name in (("Deployment", "goodput-ingest"), ("StatefulSet", "goodput-aggregator")):
        (container,) = pod(objects, kind, name)["containers"]
        mounted = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        secrets = {one["name"]: one.get("secret", {}) for one in pod(objects, kind, name)["volumes"]}
        for file in (worker.stream_credentials, worker.stream_ca):
            items = secrets[mounted[str(Path(file).parent)]]["items"]
            assert [item["path"] for item in items] == [Path(file).name]


def test_machines_and_upgrades_take_one_of_each_at_a_time(objects):
    for kind, name in (
        ("Deployment", "goodput-ingest"),
        *(("StatefulSet", name) for name in ("goodput-aggregator", "goodput-nats")),
    ):
        spec = objects[kind, name]["spec"]
        assert spec["replicas"] >= 2
        budget = objects["PodDisruptionBudget", name]["spec"]
        assert budget == {"maxUnavailable": 1, "selector": spec["selector"]}
        rules = spec["template"]["spec"]["affinity"]["podAntiAffinity"]
        required = rules.get("requiredDuringSchedulingIgnoredDuringExecution")
        assert bool(required) is (name == "goodput-nats")
        (term,) = required or [
            one["podAffinityTerm"] for one in rules["preferredDuringSchedulingIgnoredDuringExecution"]
        ]
        assert term == {"topologyKey": "kubernetes.io/hostname", "labelSelector": spec["selector"]}
        assert spec["template"]["spec"]["terminationGracePeriodSeconds"] >= 30
        (container,) = spec["template"]["spec"]["containers"]
        assert {"startupProbe", "livenessProbe", "readinessProbe"} <= container.keys()
    claims = objects["StatefulSet", "goodput-aggregator"]["spec"].get("volumeClaimTemplates")
    assert claims is None, "aggregators keep nothing"


def test_stream_is_reached_by_workers_and_aggregators_alone(objects):
    def labels(selector: dict) -> set[str]:
        (expression,) = selector.get(
            "matchExpressions", [{"values": [selector.get("matchLabels", {}).get(NAME)]}]
        )
        return set(expression["values"])

    clients = {"goodput-aggregator", "goodput-ingest"}
    nats = objects["NetworkPolicy", "goodput-nats"]["spec"]
    found = {
        rule["ports"][0]["port"]: labels(peer["podSelector"])
        for rule in nats["ingress"]
        for peer in rule["from"]
    }
    assert labels(nats["podSelector"]) == {"goodput-nats"}
    assert found == {4222: clients, 6222: {"goodput-nats"}}
    out = objects["NetworkPolicy", "goodput-stream"]["spec"]
    assert labels(out["podSelector"]) == clients
    assert (labels(out["egress"][0]["to"][0]["podSelector"]), out["egress"][0]["ports"][0]["port"]) == (
        {"goodput-nats"},
        4222,
    )
    # Whom closed-ingress lets in reaches both, nobody else either.
    reached = objects["NetworkPolicy", "goodput-aggregator"]["spec"]
    assert labels(reached["podSelector"]) == clients and len(reached["ingress"][0]["from"]) == 2


def test_workers_are_scraped_as_the_job_of_the_alerts(objects):
    monitor = objects["ServiceMonitor", "goodput-aggregator"]["spec"]
    services = [one for (kind, _), one in objects.items() if kind == "Service"]
    wanted = monitor["selector"]["matchLabels"].items()
    found = {one["metadata"]["name"]: one for one in services if wanted <= one["metadata"]["labels"].items()}
    assert set(found) == {"goodput-aggregator", "goodput-ingest"}
    (endpoint,) = monitor["endpoints"]
    assert {one["replacement"] for one in endpoint["relabelings"]} == {"goodput-aggregator"}


def test_secrets_are_documented(objects):
    text = (servers.REPOSITORY / "docs" / "scale.md").read_text()
    for name in ("goodput-nats", "goodput-nats-tls"):
        assert f"secret generic {name} " in text
    assert "DNS:goodput-ingest.goodput.svc" in text or "goodput-ingest.goodput.svc" in text


# -- NATS


def of_kubernetes() -> str:
    documents = yaml.safe_load_all(
        (DEPLOY / "kubernetes" / "components" / "stream" / "nats.yaml").read_text()
    )
    (config,) = [one for one in documents if one["kind"] == "ConfigMap"]
    return config["data"]["nats.conf"]


CONFIGURATIONS = {
    "kubernetes": of_kubernetes(),
    "shipped": (DEPLOY / "nats" / "nats.conf").read_text(),
    "compose": (DEPLOY / "compose" / "nats.conf").read_text(),
}
SHIPPED_USERS = (DEPLOY / "nats" / "nats-users.conf").read_text()


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_nats_server_takes_the_configuration(tmp_path, name):
    text = CONFIGURATIONS[name]
    users = {"users": SHIPPED_USERS} if name == "shipped" else {}
    done = checked_config(text, tmp_path, **users)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "is valid" in done.stdout + done.stderr
    usable = re.search(r"max_file_store: (\d+)GB", text)
    assert usable and int(usable[1]) * 10**9 > parsed("serve").stream_bytes
    # Unknown words are refused, or this test would say nothing.
    wrong = checked_config(text.replace("max_file_store", "max_file_stores"), tmp_path)
    assert wrong.returncode != 0


def test_stream_fits_on_its_volume(objects):
    spec = objects["StatefulSet", "goodput-nats"]["spec"]
    (claim,) = spec["volumeClaimTemplates"]
    assert memory_bytes(claim["spec"]["resources"]["requests"]["storage"]) > 16 * 10**9
    (container,) = spec["template"]["spec"]["containers"]
    assert f'store_dir: "{container["volumeMounts"][-1]["mountPath"]}"' in of_kubernetes()
    routes = re.findall(r'"nats://(\S+):6222"', of_kubernetes())
    assert routes == [f"goodput-nats-{at}.goodput-nats.goodput.svc" for at in range(3)]


# -- systemd: the defaults of both services name one stream


def test_defaults_of_systemd_name_one_stream(monkeypatch):
    monkeypatch.setattr(options, "login_of", lambda file: {})
    monkeypatch.setattr("ssl.create_default_context", lambda cafile: None)
    found = []
    for name in ("ingest", "aggregator"):
        text = (DEPLOY / "systemd" / f"goodput-{name}.default").read_text()
        for line in re.findall(r"(?m)^#?(GOODPUT_SERVE_OPTIONS=.*--stream .*)$", text):
            words = shlex.split(line)[0].partition("=")[2].split()
            words += (
                ["--role", "ingest"]
                if name == "ingest"
                else ["--ledger", "postgresql+psycopg://goodput@db/goodput"]
            )
            arguments = parsed("serve", *words)
            options.check_stream_options(arguments)
            found.append((arguments.stream, arguments.stream_credentials, arguments.stream_ca))
    assert len(found) == 3 and found.count(found[0]) == 3
    routes = re.findall(r'"nats://(\w+):6222"', CONFIGURATIONS["shipped"])
    assert [urlsplit(url).hostname for url in found[0][0][0]] == routes


# -- compose: all on one machine, behind one address


def test_compose_names_one_stream_behind_one_address():
    folder = DEPLOY / "compose"
    services = yaml.safe_load((folder / "compose-replicated.yaml").read_text())["services"]
    nats = {name: " ".join(one["command"]) for name, one in services.items() if name.startswith("nats-")}
    ports = {re.search(r"--port=(\d+)", command)[1] for command in nats.values()}
    listening = {re.search(r"--cluster=nats://(\S+)", command)[1] for command in nats.values()}
    for command in nats.values():
        others = set(re.search(r"--routes=(\S+)", command)[1].replace("nats://", "").split(","))
        assert len(others) == 2 and others | {re.search(r"--cluster=nats://(\S+)", command)[1]} == listening
    found, serving = {}, ("ingest-0", "ingest-1", "aggregator-0", "aggregator-1")
    for name in serving:
        arguments = parsed("serve", *services[name]["command"])
        found[name] = "{}:{}".format(*arguments.listen)
        assert arguments.role == {"ingest": "ingest", "aggregator": "aggregate"}[name[:-2]]
        assert {str(urlsplit(url).port) for url in arguments.stream[0]} == ports
        assert (arguments.stream_credentials, arguments.stream_ca) == (
            "/etc/goodput/login",
            "/etc/goodput/ca.crt",
        )
    balanced = dict(re.findall(r"(?m)^ +server (\S+) (\S+) check", (folder / "haproxy.cfg").read_text()))
    assert balanced == found
    for service in services.values():
        assert (
            service["read_only"]
            and service["cap_drop"] == ["ALL"]
            and service["network_mode"] in ("host", "none")
        )


def test_haproxy_takes_its_configuration():
    servers.require("haproxy")
    command = ["haproxy", "-c", "-f", str(DEPLOY / "compose" / "haproxy.cfg")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
