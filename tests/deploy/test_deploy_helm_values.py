"""Each value of the Helm chart: documented, checked by its schema, and found again in valid objects."""

import copy
import importlib.util
import json
import subprocess
import sys

import pytest
import yaml
from support.deploy.deploy_words import DEPLOY
from support.deploy.helm_values import EVERYTHING
from support.deploy.kubernetes_schemas import validate
from support.deploy.kustomize import copied_tree
from support.servers import servers

helm = pytest.importorskip("helm_python", reason="not installed: helm-python-sdk")

VALUES = yaml.safe_load((DEPLOY / "helm" / "values.yaml").read_text())
SCHEMA = json.loads((DEPLOY / "helm" / "values.schema.json").read_text())
# Values of each program's pods, by the path of its block, and the name of its object without the release's.
PODS = {"node": "node", "aggregator": "aggregator", "endedJobs": "ended-jobs"}
PODS |= {"stream.ingest": "ingest", "stream.nats": "nats"}
AFFINITY = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]
        }
    }
}
OF_POD = {
    "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
    "resources": {"requests": {"cpu": "11m"}, "limits": {"memory": "777Mi"}},
    "nodeSelector": {"pool": "infra"},
    "tolerations": [{"key": "infra", "operator": "Exists", "effect": "NoSchedule"}],
    "affinity": AFFINITY,
    "priorityClassName": "existing-class",
    "podAnnotations": {"example.com/owner": "sre"},
    "podLabels": {"team": "sre", "app.kubernetes.io/name": "must not win"},
}


@pytest.fixture(scope="module")
def chart(tmp_path_factory):
    tree = copied_tree(tmp_path_factory.mktemp("tree"))
    subprocess.run([sys.executable, tree / "deploy" / "helm" / "chart.py"], check=True)
    with helm.Chart.load(tree / "dist" / "chart" / "goodput") as chart:
        yield chart


def at(path: str, value) -> dict:
    for name in reversed(path.split(".")):
        value = {name: value}
    return value


def merged(one: dict, other: dict) -> dict:
    result = copy.deepcopy(one)
    for name, value in other.items():
        is_both = isinstance(value, dict) and isinstance(result.get(name), dict)
        result[name] = merged(result[name], value) if is_both else copy.deepcopy(value)
    return result


def rendered(chart, values: dict, release: str = "goodput") -> list[dict]:
    """The objects, valid by the schemas of Kubernetes where these have their kind."""
    manifests = chart.render(values, name=release, namespace="goodput").values()
    objects = [one for text in manifests for one in yaml.safe_load_all(text) if one]
    for one in objects:
        if not one["apiVersion"].startswith(("monitoring.coreos.com/", "cert-manager.io/")):
            validate(one, "1.34")
    return objects


def of_kind(objects: list[dict], *kinds: str) -> dict[str, dict]:
    return {one["metadata"]["name"]: one for one in objects if one["kind"] in kinds}


def pods(objects: list[dict], prefix: str = "goodput") -> dict[str, dict]:
    """Templates of pods by the suffix of their object's name."""
    owners = of_kind(objects, "DaemonSet", "StatefulSet", "Deployment")
    return {name.removeprefix(f"{prefix}-"): one["spec"]["template"] for name, one in owners.items()}


def leaves(value, path=()):
    """Paths of the values that docs/helm.md lists: what is no section."""
    for name, one in value.items():
        is_section = isinstance(one, dict) and one and (*path, name)[-1] not in ("requests", "limits")
        if is_section:
            yield from leaves(one, (*path, name))
        else:
            yield ".".join((*path, name)), one


# -- documentation and schema


def test_every_value_is_documented():
    spec = importlib.util.spec_from_file_location("values_table", DEPLOY / "helm" / "values_table.py")
    spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
    text = (DEPLOY / "helm" / "values.yaml").read_text()
    listed = {path: yaml.safe_load(default) for path, default, _ in module.rows(text)}
    assert listed == dict(leaves(VALUES)) and len(listed) > 80
    page = (servers.REPOSITORY / "docs" / "helm.md").read_text()
    assert page == module.page(page, text), "make chart"


def test_documented_example_renders(chart):
    page = (servers.REPOSITORY / "docs" / "helm.md").read_text()
    block = page[page.index("    # my-values.yaml") :].split("\n\n")[0]
    values = yaml.safe_load("\n".join(line[4:] for line in block.splitlines()))
    chart.validate_schema(values)
    found = rendered(chart, values)
    assert of_kind(found, "Certificate") and of_kind(found, "PrometheusRule")


def test_schema_has_every_value_and_no_other():
    def check(schema: dict, values: dict, path: str) -> None:
        if "$ref" in schema:
            schema = SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]]
        if "properties" not in schema:
            return  # a map of the user's own names
        assert schema["additionalProperties"] is False, path
        assert schema["properties"].keys() - {"global", "claims"} >= values.keys(), path
        for name, value in values.items():
            if isinstance(value, dict):
                check(schema["properties"][name], value, f"{path}.{name}")

    check(SCHEMA, VALUES, "values")


@pytest.mark.parametrize("path", sorted(dict(leaves(VALUES))))
def test_misspelled_value_is_refused(chart, path):
    """The name with one letter more, and the right name with a value of another type."""
    wrong = {"misspelled": {"of": ["another", "type"]}}
    typo = merged(EVERYTHING, at(f"{path}x", dict(leaves(VALUES))[path]))
    with pytest.raises(helm.HelmError):
        chart.validate_schema(typo)
    with pytest.raises(helm.HelmError):
        chart.validate_schema(merged(EVERYTHING, at(path, wrong)))


@pytest.mark.parametrize(
    "values",
    [
        {"nvidea": True},
        {"images": {"node": {"digest": "sha256:1"}}},
        {"postgresql": {"url": "mysql://a"}},
        {"stream": {"enabled": True}, "postgresql": {"enabled": False}},
        {"endedJobs": {"enabled": True}},
        {"endedJobs": {"namespaces": ["a", "a"]}},
        {"node": {"tolerations": [{"operater": "Exists"}]}},
        {"node": {"extraEnv": [{"value": "1"}]}},
        {"node": {"podAnnotations": {"a": 1}}},
        {"secrets": {"tokens": ""}},
        {"fullnameOverride": "Upper_case"},
        {"fullnameOverride": "a" * 33},
        {"networkPolicy": {"nodes": ["10.0.0.1"]}},
        {"certManager": {"duration": "90d"}},
        {"aggregator": {"grafana": "grafana.example.com"}},
        {"aggregator": {"grafana": "https://user:password@grafana.example.com"}},
    ],
)
def test_wrong_values_are_refused(chart, values):
    chart.validate_schema({})
    chart.validate_schema(EVERYTHING)
    with pytest.raises(helm.HelmError):
        chart.validate_schema(values)


# -- what each value does


@pytest.mark.parametrize("block", PODS)
def test_values_of_a_pod_reach_it_alone(chart, block):
    plain, changed = rendered(chart, EVERYTHING), rendered(chart, merged(EVERYTHING, at(block, OF_POD)))
    before, after = pods(plain), pods(changed)
    assert {name for name in before if before[name] != after[name]} == {PODS[block]}
    template = after[PODS[block]]
    assert template["metadata"] == {
        "labels": {"app.kubernetes.io/name": f"goodput-{PODS[block]}", "team": "sre"},
        "annotations": {"example.com/owner": "sre"},
    }
    spec = template["spec"]
    for name in ("nodeSelector", "tolerations", "affinity", "priorityClassName"):
        assert spec[name] == OF_POD[name], name
    container = spec["containers"][0]
    assert container["env"][-1] == OF_POD["extraEnv"][0]
    assert container["resources"]["requests"]["cpu"] == "11m"
    assert container["resources"]["limits"]["memory"] == "777Mi"
    # What was in the environment stays.
    names = {entry["name"] for entry in before[PODS[block]]["spec"]["containers"][0].get("env", ())}
    assert names < {entry["name"] for entry in container["env"]}


def test_agents_of_nvidia_keep_their_selector(chart):
    values = {"nvidia": True, "node": {"nodeSelector": {"pool": "a"}, "tolerations": []}}
    spec = pods(rendered(chart, values))["node"]["spec"]
    assert spec["nodeSelector"] == {"nvidia.com/gpu.present": "true", "pool": "a"}
    assert "tolerations" not in spec


def test_existing_priority_classes_are_not_made(chart):
    one = {"priorityClassName": "existing-class"}
    assert of_kind(rendered(chart, {"node": one}), "PriorityClass").keys() == {"goodput-aggregator"}
    both = {"node": one, "aggregator": one}
    assert of_kind(rendered(chart, both), "PriorityClass") == {}
    # Workers and NATS servers use the aggregator's, until they have their own.
    assert of_kind(rendered(chart, merged(EVERYTHING, both)), "PriorityClass").keys() == {
        "goodput-aggregator"
    }
    every = merged(EVERYTHING, {**both, "stream": {"ingest": one, "nats": one}})
    assert of_kind(rendered(chart, every), "PriorityClass") == {}


@pytest.mark.parametrize("block", PODS)
def test_service_accounts(chart, block):
    """Annotated, of another name, or not made: then an existing one, or the namespace's default."""
    own = f"goodput-{PODS[block]}"
    for values, name, annotations in (
        ({"annotations": {"example.com/role": "a"}}, own, {"example.com/role": "a"}),
        ({"name": "other"}, "other", None),
    ):
        found = rendered(chart, merged(EVERYTHING, at(block, {"serviceAccount": values})))
        account = of_kind(found, "ServiceAccount")[name]
        assert account["metadata"].get("annotations") == annotations
        assert account["automountServiceAccountToken"] is False
        assert pods(found)[PODS[block]]["spec"]["serviceAccountName"] == name
    for values, name in (({"create": False, "name": "existing"}, "existing"), ({"create": False}, "default")):
        found = rendered(chart, merged(EVERYTHING, at(block, {"serviceAccount": values})))
        assert not {own, name} & of_kind(found, "ServiceAccount").keys()
        assert pods(found)[PODS[block]]["spec"]["serviceAccountName"] == name
        if block == "endedJobs":
            (binding,) = of_kind(found, "RoleBinding").values()
            assert binding["subjects"][0]["name"] == name


def test_secrets_of_other_names_are_used_everywhere(chart):
    plain = json.dumps(rendered(chart, EVERYTHING))
    values = merged(EVERYTHING, {"secrets": {key: f"mine-{key.lower()}" for key in VALUES["secrets"]}})
    changed = json.dumps(rendered(chart, values))
    for key, name in VALUES["secrets"].items():
        keys = ("secretName", "name")
        before = sum(plain.count(f'"{one}": "{name}"') for one in keys[: 1 if key == "nats" else 2])
        assert before > 0
        assert sum(changed.count(f'"{one}": "mine-{key.lower()}"') for one in keys) == before, key


@pytest.mark.parametrize(
    "release, values, prefix",
    [
        ("goodput", {}, "goodput"),
        ("team-goodput", {}, "team-goodput"),
        ("telemetry", {}, "telemetry-goodput"),
        ("telemetry", {"nameOverride": "acc"}, "telemetry-acc"),
        ("goodput", {"fullnameOverride": "other"}, "other"),
        ("r" * 53, {"fullnameOverride": "o" * 32}, "o" * 32),
        ("r" * 53, {}, "r" * 32),
    ],
)
def test_names_begin_with_the_release(chart, release, values, prefix):
    """And refer to each other; the jobs that alerts ask for stay."""
    found = rendered(chart, merged(EVERYTHING, values), release)
    assert [one for one in found if not one["metadata"]["name"].startswith(f"{prefix}-")] == []
    services = of_kind(found, "Service")
    templates = pods(found, prefix)
    for suffix in PODS.values():
        name = f"{prefix}-{suffix}"
        assert templates[suffix]["metadata"]["labels"]["app.kubernetes.io/name"] == name and len(name) <= 63
        assert suffix == "ended-jobs" or services[name]["spec"]["selector"] == {
            "app.kubernetes.io/name": name
        }
    text = json.dumps(found)
    hosts = {f"{prefix}-{one}.goodput.svc" for one in ("aggregator", "ingest", f"nats-0.{prefix}-nats")}
    assert [host for host in hosts if host not in text] == []
    monitors = of_kind(found, "ServiceMonitor")
    jobs = set()
    for monitor in monitors.values():
        selector = monitor["spec"]["selector"]["matchLabels"].items()
        assert [s for s in services.values() if selector <= s["metadata"]["labels"].items()]
        (endpoint,) = monitor["spec"]["endpoints"]
        jobs |= {one["replacement"] for one in endpoint["relabelings"] if one["targetLabel"] == "job"}
    assert jobs == {"goodput-node", "goodput-aggregator"}


def test_two_releases_share_no_object(chart):
    names = [
        {(one["kind"], one["metadata"]["name"]) for one in rendered(chart, EVERYTHING, release)}
        for release in ("goodput", "goodput-two")
    ]
    assert not names[0] & names[1]


def test_relabelings_reach_both_monitors(chart):
    relabeling = {"targetLabel": "cluster", "replacement": "west"}
    values = {"prometheusOperator": {"enabled": True, "relabelings": [relabeling]}}
    monitors = of_kind(rendered(chart, values), "ServiceMonitor")
    assert [one["spec"]["endpoints"][0]["relabelings"][-1] for one in monitors.values()] == [relabeling] * 2


@pytest.mark.parametrize(
    "url", ["https://grafana.example.com", "http://grafana.example.com:3000/below/a: path"]
)
def test_url_of_grafana_reaches_the_aggregator(chart, url):
    """In front of aggregator.args, so that these win; only the aggregator serves the page."""
    plain = rendered(chart, EVERYTHING)
    values = merged(EVERYTHING, {"aggregator": {"grafana": url, "args": ["--keep-steps=3"]}})
    chart.validate_schema(values)
    found = rendered(chart, values)
    arguments = pods(found)["aggregator"]["spec"]["containers"][0]["args"]
    assert arguments[-2:] == [f"--grafana={url}", "--keep-steps=3"]
    assert "--grafana" not in json.dumps(plain) and json.dumps(found).count("--grafana") == 1


def test_default_deny_can_be_left_out(chart):
    found = rendered(chart, {"networkPolicy": {"defaultDeny": False}})
    assert of_kind(found, "NetworkPolicy").keys() == {"goodput-aggregator"}


# -- cert-manager


def check_certificate(spec: dict) -> None:
    """What is used of cert-manager's API reference, v1."""
    known = {"secretName", "dnsNames", "duration", "renewBefore", "privateKey", "usages", "issuerRef"}
    assert spec.keys() <= known | {"isCA", "commonName"} and {"secretName", "issuerRef"} <= spec.keys()
    assert spec["privateKey"].keys() <= {"algorithm", "size", "rotationPolicy", "encoding"}
    assert set(spec.get("usages", ())) <= {"digital signature", "server auth", "client auth"}
    assert spec["issuerRef"].keys() <= {"name", "kind", "group"}


def test_cert_manager_makes_what_the_pods_mount(chart):
    found = rendered(chart, EVERYTHING)
    certificates = of_kind(found, "Certificate")
    issuers = of_kind(found, "Issuer")
    for certificate in certificates.values():
        check_certificate(certificate["spec"])
        assert certificate["spec"]["issuerRef"]["name"] in issuers
    authority = certificates.pop("goodput-authority")["spec"]
    assert authority["isCA"] is True and issuers["goodput-self-signed"]["spec"] == {"selfSigned": {}}
    assert issuers["goodput-authority"]["spec"] == {"ca": {"secretName": authority["secretName"]}}
    names = {one["spec"]["secretName"]: one["spec"]["dnsNames"] for one in certificates.values()}
    mounted = {
        volume["secret"]["secretName"]
        for template in pods(found).values()
        for volume in template["spec"]["volumes"]
        if volume["name"] in ("tls", "stream-tls")
    }
    assert names.keys() == mounted
    assert names["goodput-aggregator-tls"] == [
        "goodput-aggregator.goodput.svc",
        "goodput-ingest.goodput.svc",
    ]
    assert names["goodput-nats-tls"] == [f"goodput-nats-{i}.goodput-nats.goodput.svc" for i in range(3)]
    for monitor in of_kind(found, "ServiceMonitor").values():
        tls = monitor["spec"]["endpoints"][0]["tlsConfig"]
        assert tls["serverName"] in names[tls["ca"]["secret"]["name"]]


def test_certificates_of_an_existing_issuer(chart):
    issuer = {"name": "company", "kind": "ClusterIssuer", "group": "cert-manager.io"}
    values = {"certManager": {"enabled": True, "issuerRef": issuer, "duration": "24h", "renewBefore": "8h"}}
    found = rendered(chart, values)
    certificates = of_kind(found, "Certificate")
    assert certificates.keys() == {"goodput-node", "goodput-aggregator"} and not of_kind(found, "Issuer")
    for one in certificates.values():
        check_certificate(one["spec"])
        assert one["spec"]["issuerRef"] == issuer
        assert (one["spec"]["duration"], one["spec"]["renewBefore"]) == ("24h", "8h")
