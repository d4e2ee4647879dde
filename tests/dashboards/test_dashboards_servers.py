"""The dashboards, rules and alerts in a real Prometheus and Alertmanager, on fake series.

A fake agent and a fake aggregator serve catalogue series that advance with the clock, and windows are shortened. Every
expression must have a value, and the alert of a planted drop must reach a webhook and resolve.
"""

import contextlib
import math
import re
import threading
import time
from collections.abc import Iterator

import pytest
import yaml
from prometheus_client import generate_latest
from support.servers import http_server
from support.servers.servers import (
    RULES,
    Alertmanager,
    Prometheus,
    VictoriaMetrics,
    Webhook,
    expressions,
    free_ports,
    render,
    require,
    shorten,
    wait_until,
)

from goodput.histograms.histogram import LATENCY_BOUNDS
from goodput.metrics import Families

RUN = 'r "1" \\ ü'  # Characters that PromQL and an alert's query must quote.
WINDOWS = {"1m": "6s", "2m": "4s", "5m": "8s", "1h": "60s"}
# The same for all rules, in a cluster that exists for some seconds.
SHORT = {
    "1m": "6s",
    "2m": "4s",
    "5m": "8s",
    "15m": "10s",
    "30m": "10s",
    "1h": "12s",
    "6h": "14s",
    "1d": "15s",
}
GPUS = 8
SHARES = {"productive": 0.8, "loader": 0.1, "communication": 0.05, "straggler": 0.05}


class FakeRun:
    """A run of eight ranks, ten steps a second; `slow` moves productive time to the loader."""

    def __init__(self):
        self.slow = False
        self._account = dict.fromkeys(SHARES, 0.0)
        self._last = time.monotonic()
        self._lock = threading.Lock()
        self.seconds = 0.0

    def advance(self) -> dict[str, float]:
        with self._lock:
            now = time.monotonic()
            gained, self._last = now - self._last, now
            self.seconds += gained
            moved = 0.6 if self.slow else 0.0
            for state, share in SHARES.items():
                share += {"productive": -moved, "loader": moved}.get(state, 0.0)
                self._account[state] += GPUS * share * gained
            return dict(self._account)

    def node(self) -> Families:
        families = Families("node")
        self.advance()
        steps = int(10 * self.seconds)
        for rank in map(str, range(GPUS)):
            labels = {"run": RUN, "rank": rank}
            families.add("goodput_rank_alive", labels, 1)
            families.add("goodput_steps_total", labels, steps)
            families.add("goodput_samples_total", labels, 32 * steps)
            for phase, share in (("forward", 0.3), ("backward", 0.5), ("loader", 0.2)):
                clocked = {**labels, "phase": phase, "clock": "host"}
                families.add("goodput_phase_seconds_total", clocked, share * self.seconds)
            buckets = [(str(bound), steps if bound >= 0.1 else 0) for bound in LATENCY_BOUNDS]
            buckets.append(("+Inf", steps))
            families.add_histogram("goodput_step_duration_seconds", labels, buckets, 0.1 * steps)
        # Another run has just been started, which is a planned pause.
        families.add("goodput_steps_total", {"run": "new", "rank": "0"}, 0)
        return families

    def aggregator(self) -> Families:
        families = Families("aggregator")
        account = self.advance()
        total = sum(account.values()) or 1.0
        families.add("goodput_run_info", {"run": RUN, "device": "H100", "status": "running"}, 1)
        for state, seconds in account.items():
            families.add("goodput_gpu_seconds", {"run": RUN, "state": state}, seconds)
            families.add("goodput_cost_dollars", {"run": RUN, "state": state}, seconds * 2.5 / 3600)
        families.add("goodput_progress_age_seconds", {"run": "new"}, self.seconds)
        for name, value in {
            "goodput_availability_ratio": 1.0,
            "goodput_step_efficiency_ratio": account["productive"] / total,
            "goodput_goodput_ratio": account["productive"] / total,
            "goodput_mfu_ratio": 0.4,
            "goodput_coverage_ratio": 1.0,
            "goodput_rank_last_report_age_seconds": 1.0,
            "goodput_restarts": 0,
            "goodput_progress_age_seconds": 0.1,
            "goodput_stall_threshold_seconds": 60.0,
        }.items():
            families.add(name, {"run": RUN}, value)
        for kind in ("expected", "observed", "alive"):
            families.add("goodput_ranks", {"run": RUN, "kind": kind}, GPUS)
        families.add("goodput_steps", {"run": RUN, "kind": "lost"}, 0)
        families.add("goodput_straggler_share_ratio", {"run": RUN, "rank": "3", "host": "n0"}, 0.9)
        families.add("goodput_cause_gain_ratio", {"run": RUN, "state": "loader"}, 1.1)
        return families


@contextlib.contextmanager
def exporter(families) -> Iterator[str]:
    """Serves the families that a function returns, at /metrics of the address that it yields."""

    class Page:
        collect = staticmethod(families)

    class Handler(http_server.Handler):
        def do_GET(self):
            text = "text/plain; version=0.0.4; charset=utf-8"
            self.answer(200, generate_latest(Page()), Content_Type=text)

    server = http_server.HttpServer(Handler)
    yield server.address
    server.close()


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    """A healthy run, scraped by Prometheus with the shipped rules, its alerts sent to a webhook."""
    require("prometheus", "prometheus-alertmanager")
    directory = tmp_path_factory.mktemp("servers")
    run, webhook = FakeRun(), Webhook()
    with (
        exporter(run.node) as node,
        exporter(run.aggregator) as aggregator,
        webhook,
        Alertmanager(directory, webhook.url) as alertmanager,
    ):
        config = render(
            directory,
            {"goodput-node": [node], "goodput-aggregator": [aggregator]},
            alertmanagers=[alertmanager.address],
            windows=WINDOWS,
            # Not for all: before the first scrape there are no targets, which must not fire here.
            hold={"GoodputUtilisationDrop": "2s"},
            substitute={"600 * group": "1 * group"},  # The age from which a run has alerts.
        )
        with Prometheus(directory, config) as prometheus:
            yield run, prometheus, webhook
            assert "level=error" not in prometheus.log.read_text()


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """Prometheus with the shipped rules and every series of the catalogue, of a cluster with every fault."""
    require("prometheus")
    # Its name is unique among the tests, so appending hides nothing.
    from support.dashboards import every_series

    directory, cluster = tmp_path_factory.mktemp("everything"), every_series.Cluster()
    with exporter(cluster.node) as node, exporter(cluster.aggregator) as aggregator:
        targets = {"goodput-node": [node], "goodput-aggregator": [aggregator]}
        config = render(directory, targets, windows=SHORT, hold="1h")
        with Prometheus(directory, config) as prometheus:
            yield prometheus


def test_every_expression_has_a_value(everything):
    """Of every panel, annotation and recording rule of all boards."""
    remaining = [one for one in expressions(run="r1", interval="8s") if one.kind != "alert"]
    assert len(remaining) > 300

    def without_value():
        """Expressions without a sample that is a number; the rates take a few scrapes."""
        found = {}
        for one in remaining:
            samples = everything.query(shorten(one.text, SHORT))
            if not any(math.isfinite(sample.value) for sample in samples):
                found[one.name] = one
        remaining[:] = found.values()
        return list(found)

    left = []
    try:
        wait_until(
            lambda: not left.__setitem__(slice(None), without_value()) and not left, 60, "every expression"
        )
    except AssertionError:
        assert left == []
    assert {target["health"] for target in everything.targets()} == {"up"}
    rules = everything.rules()
    assert {(rule["name"], rule["lastError"]) for rule in rules if "lastError" in rule} == set()
    assert {rule["health"] for rule in rules} == {"ok"}


@pytest.mark.parametrize("server", [Prometheus, VictoriaMetrics])
def test_run_without_data_gives_empty_panels(server, tmp_path):
    """No expression is an error where a run has no sample, and none makes a value up but a count of 0."""
    require(server.name)
    arguments = (tmp_path, render(tmp_path, {})) if server is Prometheus else (tmp_path,)
    now = time.time()
    with server(*arguments) as one:
        for expression in expressions(run="none", interval="1m", span="1h"):
            if expression.kind not in ("panel", "mark"):
                continue
            lines = one.over(expression.text, now - 3600, now, 60)
            values = {sample.value for sample in one.query(expression.text)}.union(
                *(line.values() for line in lines.values())
            )
            assert values == ({0.0} if "vector(0)" in expression.text else set()), expression.name


def test_account_panel_shows_shares_that_add_up(stack):
    _, prometheus, _ = stack
    quoted = RUN.replace("\\", "\\\\").replace('"', '\\"')
    panel = next(
        one for one in expressions(run=quoted, interval="4s") if "Where the GPU time goes" in one.name
    )
    shares = {sample.labels["state"]: sample.value for sample in prometheus.wait_for(panel.text, 60)}
    assert shares == {state: pytest.approx(share, abs=0.02) for state, share in SHARES.items()}
    assert sum(shares.values()) == pytest.approx(1)


def test_drop_alert_reaches_webhook_and_resolves(stack):
    run, prometheus, webhook = stack
    # A baseline to fall from: with all windows full, it lasts longer than the drop.
    prometheus.wait_for("run:steady_goodput:ratio_baseline > 0.79", 60)
    wait_until(lambda: run.seconds > 12, 60, "twelve healthy seconds")
    assert prometheus.alerts() == [] and webhook.alerts == []
    run.slow = True
    alert = webhook.wait_for("GoodputUtilisationDrop", 60, run=RUN)
    assert alert["labels"]["severity"] == "warning"
    assert "The largest loss of the last five minutes is loader" in alert["annotations"]["description"]
    leads = alert["annotations"]["dashboard_url"]
    assert leads.partition("&viewPanel=")[0] == "/d/goodput-run?var-run=r+%221%22+%5C+%C3%BC"
    run.slow = False
    webhook.wait_for("GoodputUtilisationDrop", 60, status="resolved", run=RUN)
    assert {alert["labels"]["alertname"] for alert in webhook.alerts} == {"GoodputUtilisationDrop"}


def test_server_start_failure_has_a_reason(tmp_path):
    require("prometheus")
    config = tmp_path / "prometheus.yml"
    config.write_text("scrape_configs: nonsense\n")
    with pytest.raises(AssertionError, match="prometheus ended with"), Prometheus(tmp_path, config):
        pass


def test_pair_of_prometheus_sends_each_alert_once(tmp_path):
    """Both have no target at all; with the shipped relabelling their alerts are the same."""
    require("prometheus")
    shipped = yaml.safe_load((RULES / "prometheus.yml").read_text())
    with contextlib.ExitStack() as stack:
        alertmanager = stack.enter_context(Alertmanager(tmp_path, "http://127.0.0.1:1/"))
        pair = []
        for replica in ("a", "b"):
            directory = tmp_path / replica
            directory.mkdir()
            # Prometheus finds its Alertmanager after 5 s, and drops what it sends before.
            path = render(directory, {}, alertmanagers=[alertmanager.address], hold="8s")
            config = yaml.safe_load(path.read_text())
            config["global"]["external_labels"] = {"cluster": "west", "replica": replica}
            config["alerting"]["alert_relabel_configs"] = shipped["alerting"]["alert_relabel_configs"]
            path.write_text(yaml.safe_dump(config))
            pair.append(stack.enter_context(Prometheus(directory, path)))

        def sent(prometheus) -> float:
            metrics = prometheus.http.get("/metrics").text
            found = re.search(r"(?m)^prometheus_notifications_sent_total\S* (\S+)$", metrics)
            return float(found[1]) if found else 0

        wait_until(lambda: all(sent(one) >= 2 for one in pair), 60, "both to send their alerts")
        labels = [one["labels"] for one in alertmanager.alerts()]
    names = [one["alertname"] for one in labels]
    assert sorted(names) == ["GoodputAgentDown", "GoodputAggregatorDown"]
    assert all(one["cluster"] == "west" and "replica" not in one for one in labels)


def test_missing_program_skips_with_its_name():
    with pytest.raises(pytest.skip.Exception, match="not installed: no-such-program"):
        require("no-such-program")


def test_free_ports_are_distinct():
    ports = free_ports(20)
    assert len(set(ports)) == 20


def test_render_adapts_configuration(tmp_path):
    config = render(
        tmp_path,
        {"goodput-node": ["127.0.0.1:1"]},
        windows={"5m": "8s"},
        hold={"GoodputRunStalled": "1s"},
        substitute={"> 60": "> 5"},
    )
    text = "".join(path.read_text() for path in [config, *tmp_path.glob("*.yml")])
    assert "goodput-node" in text and "job_name: goodput-aggregator" not in text
    assert "offset 8s" in text and "offset 5m" not in text and "offset 2m" in text and "[1h]" in text
    assert "> 60" not in text and "> 5" in text
    assert text.count("for: 1s") == 2 and "for: 5m" in text and "for: 2m" in text
    with pytest.raises(AssertionError, match="no shipped expression"):
        render(tmp_path, {}, substitute={"> 61": "> 5"})
    with pytest.raises(KeyError):
        render(tmp_path, {"no-such-job": []})
