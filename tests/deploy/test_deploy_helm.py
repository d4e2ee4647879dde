"""The Helm chart, rendered by Helm's own library: with the same choices it makes what kustomize makes."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from support.deploy.deploy_words import DEPLOY
from support.deploy.helm_values import EVERYTHING
from support.deploy.kustomize import copied_tree, kustomize

helm = pytest.importorskip("helm_python", reason="not installed: helm-python-sdk")

DIGEST = f"sha256:{'a' * 64}"
# Values, and the kustomization that says the same.
CHOICES = {
    "defaults": ({}, {"resources": ["../../base"]}),
    "operator": (
        {"prometheusOperator": {"enabled": True}},
        {"resources": ["../prometheus-operator"]},
    ),
    "large-cluster": (
        {"prometheusOperator": {"enabled": True, "largeCluster": True}},
        {"resources": ["../prometheus-operator"], "components": ["../../components/large-cluster"]},
    ),
    "nvidia": (
        {"nvidia": True, "prometheusOperator": {"enabled": True}},
        {"resources": ["../nvidia"]},
    ),
    "stack-samples": (
        {"stackSamples": True},
        {"resources": ["../../base"], "components": ["../../components/stack-samples"]},
    ),
    "host-files": (
        {"hostFiles": True, "nvidia": True, "prometheusOperator": {"enabled": True}},
        {"resources": ["../nvidia"], "components": ["../../components/host-files"]},
    ),
    "host-tokens": (
        {"node": {"hostTokens": "/etc/goodput/tokens"}},
        {"resources": ["../../base"], "components": ["../../components/host-tokens"]},
    ),
    "kernel-log": (
        {"kernelLog": True, "stackSamples": True},
        {
            "resources": ["../../base"],
            "components": ["../../components/stack-samples", "../../components/kernel-log"],
        },
    ),
    "postgresql": (
        {"postgresql": {"enabled": True}},
        {"resources": ["../../base"], "components": ["../../components/postgresql"]},
    ),
    "stream": (
        {
            "postgresql": {"enabled": True},
            "stream": {"enabled": True},
            "prometheusOperator": {"enabled": True},
        },
        {
            "resources": ["../prometheus-operator"],
            "components": ["../../components/postgresql", "../../components/stream"],
        },
    ),
    "otlp": (
        {"otlp": {"enabled": True}},
        {"resources": ["../../base"], "components": ["../../components/otlp"]},
    ),
    "closed-ingress": (
        {"networkPolicy": {"nodes": ["10.0.0.0/8"], "namespaces": ["monitoring"]}},
        {"resources": ["../../base"], "components": ["../../components/closed-ingress"]},
    ),
    "ended-jobs": (
        {"endedJobs": {"enabled": True, "namespaces": ["training"]}},
        {"resources": ["../../base"], "components": ["../../components/ended-jobs"]},
    ),
    "digest": (
        {"images": {"node": {"repository": "registry.example/node", "digest": DIGEST}}},
        {
            "resources": ["../../base"],
            "images": [{"name": "goodput-node", "newName": "registry.example/node", "digest": DIGEST}],
        },
    ),
}


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    return copied_tree(tmp_path_factory.mktemp("tree"))


@pytest.fixture(scope="module")
def folder(tree) -> Path:
    subprocess.run([sys.executable, tree / "deploy" / "helm" / "chart.py"], check=True)
    return tree / "dist" / "chart" / "goodput"


@pytest.fixture(scope="module")
def chart(folder):
    with helm.Chart.load(folder) as chart:
        yield chart


def objects(text: str) -> dict[tuple[str, str], dict]:
    documents = [document for document in yaml.safe_load_all(text) if document]
    found = {(document["kind"], document["metadata"]["name"]): document for document in documents}
    assert len(found) == len(documents)
    return found


def rendered(
    chart, values: dict, namespace: str = "goodput", release: str = "goodput"
) -> dict[tuple[str, str], dict]:
    manifests = chart.render(values, name=release, namespace=namespace).values()
    return objects("\n---\n".join(manifests))


@pytest.mark.parametrize("choice", CHOICES)
def test_chart_makes_what_kustomize_makes(chart, tree, choice):
    values, overlay = CHOICES[choice]
    folder = tree / "deploy" / "kubernetes" / "overlays" / f"same-{choice}"
    folder.mkdir()
    kind = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(kind | overlay))
    # The hash with which kustomize ends the name of a ConfigMap; of Helm a new chart starts the pods again.
    expected = objects(re.sub(r"(name: goodput-ended-jobs)-[a-z0-9]{10}\n", r"\1\n", kustomize(folder)))
    # Helm makes the namespace itself (--create-namespace).
    del expected["Namespace", "goodput"]
    found = rendered(chart, values)
    assert found.keys() == expected.keys()
    for name in expected:
        for one in (found[name], expected[name]):
            order_free(one)
        assert found[name] == expected[name], name


def order_free(document: dict) -> None:
    """Sort the lists whose order means nothing."""
    pod = document.get("spec", {}).get("template", {}).get("spec", {})
    pod.get("volumes", []).sort(key=lambda one: one["name"])
    for container in pod.get("containers", ()):
        container.get("env", []).sort(key=lambda one: one["name"])
        container["volumeMounts"].sort(key=lambda one: one["mountPath"])


def test_chart_passes_helms_linter(folder):
    report = helm.lint(folder, strict=True)
    assert report["errors"] == []
    assert [message for message in report["messages"] if message["severity"] > 1] == []


OF_ALL_NAMESPACES = ("PriorityClass",)
OF_JOBS = ("Role", "RoleBinding")


def test_release_in_another_namespace_names_it_everywhere(chart):
    found = rendered(chart, EVERYTHING, namespace="telemetry")
    for (kind, _), document in found.items():
        namespace = "training" if kind in OF_JOBS else "telemetry"
        assert document["metadata"].get("namespace") == (None if kind in OF_ALL_NAMESPACES else namespace)
    (subject,) = found["RoleBinding", "goodput-ended-jobs"]["subjects"]
    assert subject["namespace"] == "telemetry"
    (container,) = found["DaemonSet", "goodput-node"]["spec"]["template"]["spec"]["containers"]
    assert "--aggregator=https://goodput-ingest.telemetry.svc:9471" in container["args"]
    assert ".goodput.svc" not in str(found)


def test_values_reach_the_objects(chart):
    values = {
        "imagePullSecrets": [{"name": "pull"}],
        "node": {"args": ["--stack-samples=off"]},
        "aggregator": {"args": ["--keep-steps=3"], "storage": {"size": "1Ti", "className": "fast"}},
        "prometheusOperator": {"enabled": True, "labels": {"release": "stack"}},
        "networkPolicy": {"egress": [{"ports": [{"port": 4318}]}]},
    }
    found = rendered(chart, values)
    for kind, name, last in (
        ("DaemonSet", "goodput-node", "--stack-samples=off"),
        ("StatefulSet", "goodput-aggregator", "--keep-steps=3"),
    ):
        pod = found[kind, name]["spec"]["template"]["spec"]
        assert pod["imagePullSecrets"] == [{"name": "pull"}]
        assert pod["containers"][0]["args"][-1] == last
    (claim,) = found["StatefulSet", "goodput-aggregator"]["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["storageClassName"] == "fast"
    assert claim["spec"]["resources"]["requests"] == {"storage": "1Ti"}
    assert found["NetworkPolicy", "goodput-aggregator"]["spec"]["egress"] == [{"ports": [{"port": 4318}]}]
    labelled = [
        document for (kind, _), document in found.items() if kind in ("ServiceMonitor", "PrometheusRule")
    ]
    assert len(labelled) > 4 and all(one["metadata"]["labels"] == {"release": "stack"} for one in labelled)


def test_version_is_the_programs():
    text = (DEPLOY.parent / "pyproject.toml").read_text()
    chart = yaml.safe_load((DEPLOY / "helm" / "Chart.yaml").read_text())
    assert f'\nversion = "{chart["version"]}"\n' in text and chart["appVersion"] == chart["version"]
