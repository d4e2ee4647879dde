"""Export over OTLP/HTTP: every figure of /metrics, by the names of the conventions, at a real receiver."""

import re
import sys
import time
from collections import Counter

import pytest
from support.node.agents import agent_on
from support.node.node_rank import Rank
from support.node.node_tree import Clock, wait_until, write_tree

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra otlp is not installed")

from support.aggregator.reports import story
from support.aggregator.serve_process import push, serving
from support.dashboards.every_series import Cluster
from support.node.network_tree import devices
from support.node.network_tree import write as write_network
from support.otlp.receiver import Receiver, points_of
from support.otlp.series import HARDWARE, of_points, of_text
from support.paths import ROOT

from goodput.aggregator.accounts import accounts
from goodput.aggregator.api import exposition
from goodput.aggregator.api.app import create_app
from goodput.cli import main
from goodput.metrics import Families
from goodput.metrics.text_format import TextWriter
from goodput.otlp import points
from goodput.otlp.exporter import OtlpExporter
from goodput.otlp.instruments import CONVENTIONS
from goodput.otlp.settings import OtlpSettings, Samples, otlp_url

WAIT_SECONDS = 60


@pytest.fixture
def receiver():
    with Receiver() as one:
        yield one


def exporter_of(url: str, *parts: Families, at_ns: int = 7, **options) -> OtlpExporter:
    samples = Samples(at_ns, [part.rows for part in parts])
    return OtlpExporter(OtlpSettings(url), "goodput_node", lambda: samples, {}, **options)


@pytest.mark.parametrize("exposer", ["node", "aggregator"])
def test_every_series_of_the_catalogue_arrives(receiver, exposer, monkeypatch):
    """In several requests, whose points are those of the text."""
    monkeypatch.setattr(points, "POINTS_MAX", 100)
    families = getattr(Cluster(), exposer)()
    if exposer == "node":
        # Of the values that make several names of one series, all.
        for kind in ("correctable", "uncorrectable"):
            labels = {"gpu": "GPU-1", "kind": kind, "scope": "volatile"}
            families.add("goodput_gpu_ecc_errors_total", labels, 5)
    assert exporter_of(receiver.url, families).export() == "accepted"
    assert len(receiver.requests) > 2
    assert of_points(receiver.points()) == of_text(TextWriter().write([families]).decode())
    names = {point.name for point in receiver.points() if point.name.startswith("hw.")}
    assert names == ({name for name, _ in HARDWARE} if exposer == "node" else set())


def test_names_have_one_unit_and_kind_each(receiver):
    """A receiver may refuse a name that comes in two kinds."""
    for exposer in ("node", "aggregator"):
        exporter_of(receiver.url, getattr(Cluster(), exposer)()).export()
    kinds = {(point.name, point.unit, point.kind) for point in receiver.points()}
    assert max(Counter(name for name, _, _ in kinds).values()) == 1
    metrics = [
        metric for one in receiver.requests for metric in one.resource_metrics[0].scope_metrics[0].metrics
    ]
    assert all(metric.description for metric in metrics)


def test_runs_have_resources_of_their_own(receiver, monkeypatch):
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "k8s.cluster.name=west,host.name=other")
    families = Families("node")
    families.add("goodput_host_cpus", {}, 4)
    for run in ("r1", "r2"):
        families.add("goodput_steps_total", {"run": run, "rank": "0"}, 1)
    samples = Samples(7, [families.rows])
    settings = OtlpSettings(receiver.url, cluster="c1")
    names = {"service.name": "goodput-node", "host.name": "n0"}
    OtlpExporter(settings, "goodput_node", lambda: samples, names).export()
    found = {point.name: point.resource for point in receiver.points()}
    common = {"service.name": "goodput-node", "goodput.cluster": "c1"}
    common |= {"k8s.cluster.name": "west", "host.name": "other"}
    assert common.items() <= found["goodput.host_cpus"].items()
    assert "goodput.run" not in found["goodput.host_cpus"]
    runs = [point.resource["goodput.run"] for point in receiver.points() if "run" in point.attributes]
    assert runs == ["r1", "r2"]


def test_counter_begins_when_first_seen_and_after_reset(receiver):
    families = Families("node")
    samples = [Samples(0, [families.rows])]
    exporter = OtlpExporter(OtlpSettings(receiver.url), "goodput_node", lambda: samples[0], {})
    for at_ns, value in ((10, 5), (20, 9), (30, 2), (40, 2)):
        families.rows = {"goodput_steps_total": [(("r1", "0"), value)], "goodput_gpu_up": [(("g",), value)]}
        samples[0] = Samples(at_ns, [families.rows])
        exporter.export()
    seen = {kind: [] for kind in ("counter", "updowncounter")}
    for point in receiver.points():
        seen[point.kind].append((point.data.start_time_unix_nano, point.data.time_unix_nano))
    assert seen["counter"] == [(10, 10), (10, 20), (30, 30), (30, 40)]
    assert seen["updowncounter"] == [(10, 10), (10, 20), (10, 30), (10, 40)], "it may fall"


def test_agent_exports_what_was_scraped(receiver, tree, clock):
    write_network(tree, devices())
    page = Rank(tree / "pages", rank=0)
    page.step({"loader": 1_000_000, "forward": 20_000_000}, samples=8)
    agent = agent_on(tree, clock, otlp=OtlpSettings(receiver.url, cluster="c1"))
    agent.poll()
    text = agent.exposition(WAIT_SECONDS).decode()
    assert agent.otlp and agent.otlp.export() == "accepted"
    found = of_points(receiver.points())
    assert found == of_text(text)
    assert ("goodput_node_otlp_points_total", frozenset({("outcome", "accepted")})) in found
    assert {point.resource["host.name"] for point in receiver.points()} == {"n0"}
    agent.exposition(WAIT_SECONDS)
    assert agent.otlp.export() == "accepted"
    # What was scraped long ago is collected anew.
    before = agent._collected_ns
    assert agent.samples(3600).unix_ns == before[1]
    agent.samples(0)
    assert agent._collected_ns > before


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def tree(tmp_path):
    write_tree(tmp_path)
    (tmp_path / "pages").mkdir()
    return tmp_path


def test_aggregator_exports_what_was_scraped(receiver, tmp_path, monkeypatch):
    """As in a large installation, where scrapes and exports get what was rendered last."""
    monkeypatch.setattr(accounts, "LARGE_RANKS", 0)
    monkeypatch.setattr(exposition, "REFRESH_SECONDS", 0.05)
    rendered = ("goodput_aggregator_series_timestamp_seconds", frozenset())
    settings = OtlpSettings(receiver.url, interval_seconds=0.1)
    with serving(create_app(f"sqlite:///{tmp_path}/ledger.db", otlp=settings)) as client:
        for run in ("r1", "r2"):
            for ranks in story(run, start=time.time() - 60):
                push(client, *ranks)
        texts = {}

        def same():
            """An export of the rendering of some scrape, with both runs."""
            text = of_text(client.get("/metrics").text)
            texts[text[rendered]] = text
            for request in receiver.requests[-20:]:
                found = of_points(points_of(request))
                if found[rendered] in texts and ("goodput_restarts", frozenset({("run", "r2")})) in found:
                    return request, found
            return None

        request, found = wait_until(same, WAIT_SECONDS)
    assert found == texts[found[rendered]]
    assert {point.resource.get("goodput.run") for point in points_of(request)} == {None, "r1", "r2"}
    assert {point.resource["service.name"] for point in points_of(request)} == {"goodput-aggregator"}


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://collector:4318", "http://collector:4318/v1/metrics"),
        ("https://host/opentelemetry/", "https://host/opentelemetry/v1/metrics"),
        ("http://[::1]:1/v1/metrics", "http://[::1]:1/v1/metrics"),
    ],
)
def test_path_is_appended_once(text, url):
    assert otlp_url(text) == url


@pytest.mark.parametrize("command", ["node", "serve"])
@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--otlp", "collector:4318"], "expected a URL"),
        (["--otlp", "http://u:p@collector"], "OTEL_EXPORTER_OTLP_HEADERS"),
        (["--otlp-interval", "5"], "--otlp-interval needs --otlp"),
    ],
)
def test_wrong_options_exit_with_2(command, options, text, capsys):
    try:
        status = main([command, *options])
    except SystemExit as end:
        status = end.code
    assert status == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("command", ["node", "serve"])
def test_missing_extra_is_named(command, monkeypatch, capsys, tmp_path):
    for name in ("goodput.otlp.exporter", "goodput.otlp.points", "goodput.aggregator.api.otlp_export"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.metric_exporter", None)
    monkeypatch.chdir(tmp_path)
    listen = ["--listen", "127.0.0.1:0"]
    assert main([command, *listen, "--otlp", "http://127.0.0.1:1"]) == 1
    assert "pip install 'goodput-telemetry[otlp]'" in capsys.readouterr().err


def test_documented_table_is_the_mapping():
    text = (ROOT / "docs" / "otlp.md").read_text()
    rows = {
        (
            series.strip("`").partition("{")[0],
            *metric.replace("`", "").replace("up-down c", "updownc").split(", "),
        )
        for series, metric, _ in re.findall(r"^\| (`goodput_\S+`) \| (`hw\..+?) \| (.+) \|$", text, re.M)
    }
    assert rows == {(one.metric, one.name, one.unit, one.kind) for one in CONVENTIONS}
