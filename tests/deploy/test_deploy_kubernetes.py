"""The Kubernetes objects: valid by the schemas of several versions, bounded, without rights that they do not need.

Overlays are rendered where kubectl or kustomize is installed; the files themselves are always checked. No cluster is
used.
"""

import json
import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import sqlalchemy
import yaml
from support.deploy import kubernetes_schemas
from support.deploy.deploy_words import DEPLOY, parsed
from support.deploy.kustomize import copied_tree, kustomize
from support.servers import servers

from goodput.access import listening
from goodput.aggregator.ingest.store import RUNS_MAX
from goodput.metrics import CATALOGUE
from goodput.provision.prometheus import write_configuration
from goodput.rank_page.page import SYSTEM_DIRECTORY

KUBERNETES = DEPLOY / "kubernetes"
OVERLAYS = ("base", "overlays/prometheus-operator", "overlays/nvidia")
# Components of patches alone, which are no whole objects.
PATCHES = {
    "nvidia",
    "stack-samples",
    "host-files",
    "host-tokens",
    "kernel-log",
    "closed-ingress",
    "postgresql",
}
VERSIONS = ("1.27", "1.31", "1.34")
FILES = sorted(
    path
    for path in KUBERNETES.rglob("*.yaml")
    if path.name not in ("kustomization.yaml", "rules.yaml")
    and (not PATCHES & {*path.parts} or path.name == "egress.yaml")
    and path.parts[-2:] != ("stream", "aggregator.yaml")
)
KUSTOMIZATIONS = sorted(
    [
        *KUBERNETES.rglob("kustomization.yaml"),
        DEPLOY.parent / "dashboards" / "generated" / "kustomization.yaml",
    ]
)
# No schema for these is shipped with Kubernetes.
OPERATOR = "monitoring.coreos.com/v1"


def load(path: Path) -> list[dict]:
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    return copied_tree(tmp_path_factory.mktemp("tree"))


@pytest.fixture(scope="module", params=OVERLAYS)
def built(request, tree) -> tuple[str, list[dict]]:
    """(overlay, its objects as kustomize makes them)."""
    text = kustomize(tree / "deploy" / "kubernetes" / request.param)
    return request.param, [document for document in yaml.safe_load_all(text) if document]


# By the option of a scrape configuration, the field of a ServiceMonitor.
LIMITS = {
    "sample_limit": "sampleLimit",
    "body_size_limit": "bodySizeLimit",
    "label_limit": "labelLimit",
    "label_name_length_limit": "labelNameLengthLimit",
    "label_value_length_limit": "labelValueLengthLimit",
}


def validate(document: dict) -> None:
    if document["apiVersion"] == OPERATOR:
        check_operator(document)
        return
    for version in VERSIONS:
        kubernetes_schemas.validate(document, version)


def check_operator(document: dict) -> None:
    """The shape of ServiceMonitor and PrometheusRule, as their API reference gives it, of what is used here."""
    spec = document["spec"]
    if document["kind"] == "PrometheusRule":
        assert spec.keys() == {"groups"} and spec["groups"]
        for group in spec["groups"]:
            assert group.keys() <= {"name", "rules", "interval", "limit", "labels"} and group["rules"]
            for rule in group["rules"]:
                assert ("alert" in rule) != ("record" in rule) and isinstance(rule["expr"], str)
    else:
        assert document["kind"] == "ServiceMonitor"
        assert spec.keys() <= {"selector", "endpoints", "namespaceSelector", *LIMITS.values()}
        for endpoint in spec["endpoints"]:
            known = {"port", "path", "interval", "scrapeTimeout", "honorLabels", "authorization", "scheme"}
            assert {"port"} <= endpoint.keys() <= known | {"tlsConfig", "relabelings", "metricRelabelings"}
            # Alerts ask for these names; those of services may be others (docs/helm.md).
            assert endpoint["relabelings"] == [
                {"targetLabel": "job", "replacement": document["metadata"]["name"], "action": "replace"}
            ]
            # Only these three concern TLS; skipping the check is not one of them.
            assert endpoint["tlsConfig"].keys() == {"ca", "serverName"} and endpoint["scheme"] == "https"


def pods(documents: list[dict]):
    """(object, pod specification) of everything that makes pods."""
    for document in documents:
        if document["kind"] in ("DaemonSet", "StatefulSet", "Deployment", "Job"):
            yield document, document["spec"]["template"]["spec"]


def of_kind(documents: list[dict], kind: str) -> dict[str, dict]:
    return {document["metadata"]["name"]: document for document in documents if document["kind"] == kind}


# -- the files


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(KUBERNETES)))
def test_every_object_is_valid(path):
    documents = load(path)
    assert documents
    for document in documents:
        validate(document)


def test_misspelled_field_is_invalid():
    from kubernetes_validate import ValidationError

    document = load(KUBERNETES / "base" / "node.yaml")[2]
    document["spec"]["template"]["spec"]["hostPid"] = True
    with pytest.raises(ValidationError):
        validate(document)


@pytest.mark.parametrize("path", KUSTOMIZATIONS, ids=lambda path: str(path.relative_to(DEPLOY.parent)))
def test_kustomization_refers_to_existing_files(path, tree):
    path = tree / path.relative_to(DEPLOY.parent)
    document = yaml.safe_load(path.read_text())
    assert document["kind"] in ("Kustomization", "Component")
    named = [*document.get("resources", ()), *document.get("components", ())]
    named += [patch["path"] for patch in document.get("patches", ()) if "path" in patch]
    for generator in document.get("configMapGenerator", ()):
        # kustomize reads files only below the folder of the kustomization itself.
        assert not any(".." in file for file in generator["files"])
        named += generator["files"]
    assert named or document["patches"]
    for name in named:
        target = path.parent / name
        assert target.is_file() or (target / "kustomization.yaml").is_file(), name


def test_base_lists_all_its_files():
    listed = yaml.safe_load((KUBERNETES / "base" / "kustomization.yaml").read_text())["resources"]
    files = {path.name for path in (KUBERNETES / "base").glob("*.yaml")} - {"kustomization.yaml"}
    assert files == {name for name in listed if not name.startswith("..")}


def test_every_board_is_in_the_kustomization():
    folder = DEPLOY.parent / "dashboards" / "generated"
    maps = yaml.safe_load((folder / "kustomization.yaml").read_text())["configMapGenerator"]
    expected = {f"{path.stem}-dashboard": [path.name] for path in folder.glob("*.json")}
    assert {one["name"]: one["files"] for one in maps} == expected


def test_generated_rules_are_those_of_prometheus(tree):
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    written = load(tree / "deploy" / "kubernetes" / "components" / "prometheus-operator" / "rules.yaml")
    shipped = [yaml.safe_load((DEPLOY / "prometheus" / name).read_text()) for name in config["rule_files"]]
    assert [document["spec"] for document in written] == shipped
    for document in written:
        validate(document)


def test_stack_samples_add_one_capability():
    """The patch names containers of the base, and gives the agent no right but to read processes' memory."""
    base = load(KUBERNETES / "base" / "node.yaml")[-1]["spec"]["template"]["spec"]
    (patch,) = load(KUBERNETES / "components" / "stack-samples" / "node.yaml")
    pod = patch["spec"]["template"]["spec"]
    for kind in ("containers", "initContainers"):
        assert [one["name"] for one in pod[kind]] == [one["name"] for one in base[kind]]
    (node,) = pod["containers"]
    assert node["securityContext"]["capabilities"] == {"add": ["SYS_PTRACE"]}
    assert base["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert base["hostPID"] is True
    for kind in ("containers", "initContainers"):
        for one, changes in zip(base[kind], pod[kind], strict=True):
            for name, value in changes.items():
                one[name] = one[name] | value if isinstance(value, dict) else value
    validate(
        {
            **patch,
            "spec": {
                **load(KUBERNETES / "base" / "node.yaml")[-1]["spec"],
                "template": {"metadata": {"labels": {"a": "b"}}, "spec": base},
            },
        }
    )


@pytest.mark.parametrize(
    "components, of_container",
    [
        (["host-files"], {"runAsNonRoot": False, "runAsUser": 0, "allowPrivilegeEscalation": False}),
        (["kernel-log"], {"runAsUser": 0, "privileged": True, "allowPrivilegeEscalation": True}),
        (["stack-samples", "host-files", "kernel-log"], {"runAsUser": 0, "privileged": True}),
    ],
    ids=["host-files", "kernel-log", "all"],
)
def test_components_give_the_agent_the_host(tree, components, of_container):
    """Alone and together; the root is read-only, and the kubelet's socket is below it."""
    overlay = tree / "deploy" / "kubernetes" / "overlays" / "-".join(components)
    overlay.mkdir()
    lists = {"resources": ["../../base"], "components": [f"../../components/{one}" for one in components]}
    (overlay / "kustomization.yaml").write_text(yaml.safe_dump(lists))
    documents = [one for one in yaml.safe_load_all(kustomize(overlay)) if one]
    (agent,) = [one for one in documents if one["kind"] == "DaemonSet"]
    validate(agent)
    pod = agent["spec"]["template"]["spec"]
    (node,) = pod["containers"]
    assert of_container.items() <= node["securityContext"].items()
    assert node["securityContext"]["capabilities"]["drop"] == ["ALL"]
    assert "chown 0:0 /pages" in pod["initContainers"][0]["command"][-1]
    mounts = {one["name"]: one for one in node["volumeMounts"]}
    assert ("--rootfs=/host/root" in node["args"]) == ("root" in mounts) == ("host-files" in components)
    if "root" in mounts:
        assert mounts["root"]["readOnly"] is True and mounts["root"]["mountPropagation"] == "HostToContainer"
        assert {"name": "root", "hostPath": {"path": "/", "type": "Directory"}} in pod["volumes"]
    assert {"pages", "sys", "proc", "tokens", "tls", "tmp"} <= mounts.keys()


# -- what kustomize makes of them


def test_every_rendered_object_is_valid(built):
    _, documents = built
    names = [(document["kind"], document["metadata"]["name"]) for document in documents]
    assert len(set(names)) == len(names)
    for document in documents:
        validate(document)
        of_all = document["kind"] in ("Namespace", "PriorityClass")
        assert of_all or document["metadata"]["namespace"] == "goodput"


def test_overlay_adds_its_parts(built):
    overlay, documents = built
    (node,) = of_kind(documents, "DaemonSet").values()
    pod = node["spec"]["template"]["spec"]
    nvidia = overlay.endswith("nvidia")
    assert (pod.get("runtimeClassName") == "nvidia") is nvidia
    (container,) = pod["containers"]
    assert ("--gpu-driver=nvml" in container["args"]) is nvidia
    # A patch adds to the environment; what was there stays.
    assert "HOST_IP" in {entry["name"] for entry in container["env"]}
    monitored = overlay != "base"
    assert bool(of_kind(documents, "PrometheusRule")) is monitored
    boards = {name: m for name, m in of_kind(documents, "ConfigMap").items() if name.endswith("-dashboard")}
    generated = DEPLOY.parent / "dashboards" / "generated"
    expected = (
        {path.name: json.loads(path.read_text()) for path in generated.glob("*.json")} if monitored else {}
    )
    assert {file: json.loads(text) for m in boards.values() for file, text in m["data"].items()} == expected
    for board in boards.values():
        assert board["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert len(json.dumps(board)) < 1 << 20  # etcd takes no larger object.


def test_monitors_find_services_and_services_find_pods(built):
    _, documents = built
    services = of_kind(documents, "Service")
    assert set(services) == {"goodput-node", "goodput-aggregator"}
    for monitor in of_kind(documents, "ServiceMonitor").values():
        labels = monitor["spec"]["selector"]["matchLabels"].items()
        (service,) = [s for s in services.values() if labels <= s["metadata"]["labels"].items()]
        ports = {port["name"] for port in service["spec"]["ports"]}
        assert {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]} <= ports
    for document, pod in pods(documents):
        labels = document["spec"]["template"]["metadata"]["labels"].items()
        (service,) = [s for s in services.values() if s["spec"]["selector"].items() <= labels]
        ports = {
            port["name"]: port["containerPort"] for c in pod["containers"] for port in c.get("ports", ())
        }
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= set(ports)


def limits_of(jobs: list[dict]) -> dict[str, dict]:
    return {job["job_name"]: {name: job[name] for name in LIMITS} for job in jobs}


def test_every_scrape_is_bounded_alike(tmp_path):
    """With room for what is exposed at most: beyond a limit Prometheus refuses the whole scrape."""
    shipped = {
        name: yaml.safe_load((DEPLOY / "prometheus" / name).read_text())
        for name in ("prometheus.yml", "agent.yml")
    }
    limits = limits_of(shipped["prometheus.yml"]["scrape_configs"])
    assert limits_of(shipped["agent.yml"]["scrape_configs"]) == limits
    write_configuration(servers.REPOSITORY, tmp_path, "head")
    written = yaml.safe_load((tmp_path / "prometheus.yml").read_text())
    assert limits_of(written["scrape_configs"]) == limits
    monitors = of_kind(
        load(KUBERNETES / "components" / "prometheus-operator" / "monitors.yaml"), "ServiceMonitor"
    )
    assert {
        name: {option: monitor["spec"][field] for option, field in LIMITS.items()}
        for name, monitor in monitors.items()
    } == limits
    # Nobody else's pod may set the labels of a target.
    assert not any("namespaceSelector" in monitor["spec"] for monitor in monitors.values())
    of_run, of_rank = 230, 900  # a run's series; a rank's, with all phases that a page may have
    assert limits["goodput-aggregator"]["sample_limit"] >= of_run * RUNS_MAX + 100_000
    assert limits["goodput-node"]["sample_limit"] >= 16 * of_rank + 2 * 1024 + 16 * 500
    most = max(len(metric.labels) for metric in CATALOGUE.values())
    assert all(one["label_limit"] >= most + 8 for one in limits.values()), (
        "le and the labels of a target beside"
    )


def test_network_policy_admits_agent_pushes(built):
    _, documents = built
    (container,) = next(pod for d, pod in pods(documents) if d["kind"] == "DaemonSet")["containers"]
    arguments = parsed("node", *[a.replace("$(HOST_IP)", "10.0.0.1") for a in container["args"]])
    assert arguments.aggregator == "https://goodput-aggregator.goodput.svc:9471"
    (port,) = of_kind(documents, "Service")["goodput-aggregator"]["spec"]["ports"]
    assert port["port"] == 9471
    policy = of_kind(documents, "NetworkPolicy")["goodput-aggregator"]["spec"]
    assert policy["ingress"] == [{"ports": [{"protocol": "TCP", "port": 9471}]}] and policy["egress"] == []
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert arguments.directory in mounts
    for root in (arguments.sysfs, arguments.procfs):
        assert mounts[root]["readOnly"] is True
    listening.check_options(arguments, "10.0.0.1", only_metrics=True)
    for name in ("token_file", "ca_file", "tokens", "tls_cert", "tls_key"):
        assert Path(getattr(arguments, name)).parent.as_posix() in mounts, name


@pytest.fixture(scope="module")
def hardened(tree) -> list[dict]:
    """An overlay with PostgreSQL, OTLP, closed ingress and images by digest."""
    folder = tree / "deploy" / "kubernetes" / "overlays" / "hardened"
    folder.mkdir()
    image = {"name": "goodput-node", "newName": "registry.example/node", "digest": f"sha256:{'a' * 64}"}
    overlay = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": ["../../base"],
        "components": [
            f"../../components/{name}" for name in ("postgresql", "otlp", "closed-ingress", "ended-jobs")
        ],
        "images": [image, {"name": "goodput-aggregator", "digest": f"sha256:{'b' * 64}"}],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    documents = [document for document in yaml.safe_load_all(kustomize(folder)) if document]
    for document in documents:
        validate(document)
    return documents


def test_ledger_in_postgresql_is_reached_by_policy(hardened):
    aggregator = of_kind(hardened, "StatefulSet")["goodput-aggregator"]["spec"]
    assert "volumeClaimTemplates" not in aggregator
    (container,) = aggregator["template"]["spec"]["containers"]
    assert "/var/lib/goodput" not in {mount["mountPath"] for mount in container["volumeMounts"]}
    url = sqlalchemy.make_url(parsed("serve", *container["args"]).ledger)
    assert (url.drivername, url.username, url.password) == ("postgresql+psycopg", "goodput", None)
    environment = {entry["name"]: entry for entry in container["env"]}
    assert "secretKeyRef" in environment["PGPASSWORD"]["valueFrom"]
    assert environment["PGSSLMODE"]["value"] == "verify-full"
    assert environment["PGSSLROOTCERT"]["value"].startswith("/etc/goodput/postgresql/")
    policy = of_kind(hardened, "NetworkPolicy")["goodput-aggregator-postgresql"]["spec"]
    assert policy["podSelector"] == aggregator["selector"] and policy["policyTypes"] == ["Egress"]
    database, names = policy["egress"]
    (peer,) = database["to"]
    namespace = peer["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"]
    assert url.host.split(".")[1] == namespace
    assert database["ports"] == [{"protocol": "TCP", "port": url.port or 5432}]
    assert {port["port"] for port in names["ports"]} == {53}
    assert "secret generic goodput-postgresql " in (servers.REPOSITORY / "docs" / "deploy.md").read_text()


def test_collector_of_otlp_is_reached_by_policy(hardened):
    """Both programs are given the collector's address, and the aggregator's policy opens the way there."""
    urls = set()
    for kind, name, command in (
        ("StatefulSet", "goodput-aggregator", "serve"),
        ("DaemonSet", "goodput-node", "node"),
    ):
        (container,) = of_kind(hardened, kind)[name]["spec"]["template"]["spec"]["containers"]
        urls.add(parsed(command, *container["args"]).otlp)
    (url,) = map(urlsplit, urls)
    collector, names = of_kind(hardened, "NetworkPolicy")["goodput-aggregator-otlp"]["spec"]["egress"]
    (peer,) = collector["to"]
    assert (
        peer["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"] == url.hostname.split(".")[1]
    )
    assert collector["ports"] == [{"protocol": "TCP", "port": url.port}]
    assert {port["port"] for port in names["ports"]} == {53}


def test_closed_ingress_names_nodes_and_namespaces(hardened):
    policy = of_kind(hardened, "NetworkPolicy")["goodput-aggregator"]["spec"]
    (rule,) = policy["ingress"]
    assert rule["ports"] == [{"protocol": "TCP", "port": 9471}] and policy["egress"] == []
    assert [sorted(peer) for peer in rule["from"]] == [["ipBlock"], ["namespaceSelector"]]


def test_ended_jobs_lists_pods_alone_and_reaches_the_aggregator(hardened):
    """In one namespace for each Role; no right holds for all namespaces."""
    assert of_kind(hardened, "ClusterRole") == of_kind(hardened, "ClusterRoleBinding") == {}
    (role,) = of_kind(hardened, "Role").values()
    assert role["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
    deployment = of_kind(hardened, "Deployment")["goodput-ended-jobs"]
    (binding,) = of_kind(hardened, "RoleBinding").values()
    assert role["metadata"]["namespace"] == binding["metadata"]["namespace"] == "training"
    pod = deployment["spec"]["template"]
    (subject,) = binding["subjects"]
    assert (subject["name"], subject["namespace"]) == (
        pod["spec"]["serviceAccountName"],
        deployment["metadata"]["namespace"],
    )
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    (program,) = of_kind(hardened, "ConfigMap").values()
    assert volumes["program"]["configMap"]["name"] == program["metadata"]["name"]
    (container,) = pod["spec"]["containers"]
    assert Path(container["command"][1]).name in program["data"]
    environment = {one["name"]: one["value"] for one in container["env"]}
    assert environment["GOODPUT_NAMESPACES"] == role["metadata"]["namespace"]
    policy = of_kind(hardened, "NetworkPolicy")["goodput-ended-jobs"]["spec"]
    aggregator = of_kind(hardened, "StatefulSet")["goodput-aggregator"]["spec"]["selector"]
    assert policy["podSelector"] == aggregator
    assert policy["ingress"][0]["from"] == [{"podSelector": deployment["spec"]["selector"]}]


def test_images_are_pinned_by_digest(hardened):
    images = {
        container["image"]
        for _, pod in pods(hardened)
        for container in [*pod.get("initContainers", ()), *pod["containers"]]
    }
    assert images == {
        f"registry.example/node@sha256:{'a' * 64}",
        f"goodput-aggregator@sha256:{'b' * 64}",
    }


def test_priorities_exist_and_preempt_nobody(built):
    _, documents = built
    classes = of_kind(documents, "PriorityClass")
    assert {pod["priorityClassName"] for _, pod in pods(documents)} == set(classes)
    for one in classes.values():
        # Above that Kubernetes keeps the values for itself.
        assert 0 < one["value"] <= 1_000_000_000 and not one.get("globalDefault")
        assert one["preemptionPolicy"] == "Never"


def test_start_up_is_bounded_by_progress(built):
    """The startup probe covers the time until it listens; later /healthz follows the reading of the ledger."""
    _, documents = built
    (container,) = of_kind(documents, "StatefulSet")["goodput-aggregator"]["spec"]["template"]["spec"][
        "containers"
    ]
    paths = {
        name: container[name]["httpGet"]["path"]
        for name in ("startupProbe", "livenessProbe", "readinessProbe")
    }
    assert paths == {"startupProbe": "/healthz", "livenessProbe": "/healthz", "readinessProbe": "/readyz"}


def test_aggregator_is_single_and_authenticates(built):
    _, documents = built
    aggregator = of_kind(documents, "StatefulSet")["goodput-aggregator"]["spec"]
    assert aggregator["replicas"] == 1
    (container,) = aggregator["template"]["spec"]["containers"]
    arguments = parsed("serve", *container["args"])
    assert arguments.listen == ("0.0.0.0", 9471)
    listening.check_options(arguments, "0.0.0.0")
    assert not (arguments.insecure_http or arguments.metrics_public)
    ledger = arguments.ledger.removeprefix("sqlite:///")
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    claims = {claim["metadata"]["name"] for claim in aggregator["volumeClaimTemplates"]}
    assert mounts[str(Path(ledger).parent)] in claims
    for name in ("tokens", "tls_cert", "tls_key"):
        assert str(Path(getattr(arguments, name)).parent) in mounts
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["scheme"] == "HTTPS"


def test_secrets_are_documented_and_minimal(built):
    _, documents = built
    text = (servers.REPOSITORY / "docs" / "deploy.md").read_text()
    seen = {}
    for document, pod in pods(documents):
        for volume in pod["volumes"]:
            if "secret" in volume:
                secret = volume["secret"]
                assert f"secret generic {secret['secretName']} " in text, secret["secretName"]
                # Mode for the group alone, which fsGroup is.
                assert secret["defaultMode"] == 0o440
                keys = {item["key"] for item in secret.get("items", ())}
                seen.setdefault(document["metadata"]["name"], {})[secret["secretName"]] = keys
    assert seen["goodput-aggregator"] == {"goodput-tokens": {"tokens.json"}, "goodput-aggregator-tls": set()}
    assert seen["goodput-node"] == {
        "goodput-node-tokens": {"tokens.json", "ingest"},
        "goodput-node-tls": set(),
    }
    # What a node's kubelet may fetch, root on that node has: no secret of the nodes holds what opens the aggregator's runs.
    brought = {
        "goodput-node": {"name": "goodput-node-tokens", "key": "metrics"},
        "goodput-aggregator": {"name": "goodput-tokens", "key": "read"},
    }
    for name, monitor in of_kind(documents, "ServiceMonitor").items():
        for endpoint in monitor["spec"]["endpoints"]:
            assert endpoint["authorization"]["credentials"] == brought[name]
            assert endpoint["tlsConfig"]["serverName"] in text


def test_large_cluster_drops_no_series_that_rules_need(tree):
    folder = tree / "deploy" / "kubernetes" / "overlays" / "large"
    folder.mkdir()
    overlay = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    overlay |= {"resources": ["../prometheus-operator"], "components": ["../../components/large-cluster"]}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    documents = [document for document in yaml.safe_load_all(kustomize(folder)) if document]
    monitors = of_kind(documents, "ServiceMonitor")
    validate(monitors["goodput-node"])
    (endpoint,) = monitors["goodput-node"]["spec"]["endpoints"]
    (relabelling,) = endpoint["metricRelabelings"]
    assert (endpoint["interval"], endpoint["scrapeTimeout"], relabelling["action"]) == ("30s", "10s", "drop")
    assert relabelling["regex"] in (servers.REPOSITORY / "docs" / "sizing.md").read_text()
    rules = [
        rule
        for one in of_kind(documents, "PrometheusRule").values()
        for group in one["spec"]["groups"]
        for rule in group["rules"]
    ]
    # Their quantiles are the aggregator's; without it the buckets stand in for them.
    spare = {f"run_le:step_seconds_bucket:rate_{window}" for window in ("1m", "5m")}
    spare.add("run_phase_le:phase_seconds_bucket:rate_5m")
    needed = " ".join(rule["expr"] for rule in rules if rule.get("record") not in spare)
    assert not [rule for rule in rules if "alert" in rule and any(name in rule["expr"] for name in spare)]
    dropped = re.compile(relabelling["regex"])
    names = set(re.findall(r"goodput_\w+", needed))
    assert len(names) > 100 and [name for name in names if dropped.fullmatch(name)] == []
    histograms = [f"{name}_bucket" for name in CATALOGUE]
    assert len([name for name in [*CATALOGUE, *histograms] if dropped.fullmatch(name)]) == 8


# -- rights and bounds

EVERY_POD = [
    pytest.param(document, pod, id=document["metadata"]["name"])
    for path in FILES
    for document, pod in pods(load(path))
]


@pytest.mark.parametrize(("document", "pod"), EVERY_POD)
def test_only_the_folder_init_container_runs_as_root(document, pod):
    security = pod["securityContext"]
    assert security["runAsNonRoot"] is True and security["runAsUser"] > 0
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in pod["containers"]:
        own = container["securityContext"]
        assert own["allowPrivilegeEscalation"] is False
        assert own["capabilities"] == {"drop": ["ALL"]}
        assert not {"privileged", "runAsUser", "runAsNonRoot"} & own.keys()
    for container in pod.get("initContainers", ()):
        own = container["securityContext"]
        assert container["name"] == "page-directory"
        assert own["capabilities"] == {"drop": ["ALL"], "add": ["CHOWN", "FOWNER"]}
        assert own["allowPrivilegeEscalation"] is False and own["readOnlyRootFilesystem"] is True
        assert [mount["name"] for mount in container["volumeMounts"]] == ["pages"]


@pytest.mark.parametrize(("document", "pod"), EVERY_POD)
def test_containers_have_limits_tags_and_volumes(document, pod):
    ours = document["kind"] != "Job"
    tags = {
        image["name"]: image["newTag"]
        for image in yaml.safe_load((KUBERNETES / "base" / "kustomization.yaml").read_text())["images"]
    }
    volumes = {volume["name"] for volume in pod["volumes"]}
    volumes |= {claim["metadata"]["name"] for claim in document["spec"].get("volumeClaimTemplates", ())}
    for container in [*pod.get("initContainers", ()), *pod["containers"]]:
        resources = container["resources"]
        assert {"cpu", "memory"} <= resources["requests"].keys() and "memory" in resources["limits"]
        if ours:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            # A limit would stop the agent for the rest of each tenth of a second, in which its readers wait.
            is_agent = document["metadata"]["name"] == "goodput-node" and container in pod["containers"]
            assert ("cpu" in resources["limits"]) is not is_agent
        tag = tags.get(container["image"]) or container["image"].rpartition(":")[2]
        assert tag[0].isdigit(), container["image"]
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
    if ours:
        assert pod["automountServiceAccountToken"] is False


@pytest.mark.parametrize(("document", "pod"), EVERY_POD)
def test_only_the_agent_shares_the_host_read_only(document, pod):
    agent = document["metadata"]["name"] == "goodput-node"
    for share in ("hostNetwork", "hostPID"):
        assert pod.get(share, False) is agent
    assert "hostIPC" not in pod
    paths = {v["name"]: v["hostPath"]["path"] for v in pod["volumes"] if "hostPath" in v}
    assert (
        set(paths.values())
        == {
            "goodput-node": {"/run/goodput", "/sys", "/proc"},
            "goodput-aggregator": set(),
            "goodput-ended-jobs": set(),
            "goodput-ingest": set(),
            "goodput-nats": set(),
            "train": {"/run/goodput"},
        }[document["metadata"]["name"]]
    )
    for container in pod["containers"]:
        for mount in container["volumeMounts"]:
            if paths.get(mount["name"]) in ("/sys", "/proc"):
                assert mount["readOnly"] is True


def test_pages_lie_where_only_root_makes_folders():
    """The process that makes the folder of pages first would own it, and the init container would trust it."""
    folders = {
        volume["hostPath"]["path"]
        for path in FILES
        for _, pod in pods(load(path))
        for volume in pod["volumes"]
        if volume.get("hostPath", {}).get("path") not in (None, "/sys", "/proc")
    }
    assert folders == {SYSTEM_DIRECTORY} == {"/run/goodput"}


def test_job_with_the_claim_meets_the_restricted_level():
    """What the Pod Security Standards forbid under "restricted", of what the job has when it uses the claim."""
    ((_, pod),) = pods(load(KUBERNETES / "job-example.yaml"))
    volume, claim = load(KUBERNETES / "job-volume.yaml")
    assert volume["spec"]["hostPath"] == {"path": SYSTEM_DIRECTORY, "type": "Directory"}
    assert volume["spec"]["claimRef"].items() <= claim["metadata"].items()
    assert claim["spec"]["volumeName"] == volume["metadata"]["name"]
    assert claim["spec"]["storageClassName"] == volume["spec"]["storageClassName"] == ""
    comment = (KUBERNETES / "job-volume.yaml").read_text().partition("apiVersion")[0]
    part = yaml.safe_load(
        "".join(line.removeprefix("# ") + "\n" for line in comment.split("\n") if "#     " in line)
    )
    (named,) = part
    assert named["name"] == pod["volumes"][0]["name"]
    assert named["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    allowed = {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
    assert all(volume.keys() - {"name"} <= allowed for volume in [named, *pod["volumes"][1:]])
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }


def test_job_example_uses_the_agents_page_folder():
    ((job, pod),) = pods(load(KUBERNETES / "job-example.yaml"))
    (container,) = pod["containers"]
    environment = {entry["name"]: entry["value"] for entry in container["env"]}
    assert environment["GOODPUT_DIR"] in {mount["mountPath"] for mount in container["volumeMounts"]}
    assert container["command"][:2] == ["goodput", "run"]
    assert environment["GOODPUT_RUN"] == job["metadata"]["name"]
