"""Receivers that are dead, slow, refuse or answer nonsense: nothing waits for them, and series say so."""

import gc
import threading
import time
import tracemalloc

import pytest
from support.aggregator.reports import story
from support.aggregator.serve_process import push, samples, serving
from support.node.agents import agent_on
from support.node.node_tree import Clock, write_tree

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra otlp is not installed")

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from support.otlp.receiver import Receiver
from support.servers.certificates import Authority
from support.servers.servers import free_ports

from goodput.aggregator.api.app import create_app
from goodput.metrics import Families
from goodput.otlp import exporter as exporter_module
from goodput.otlp import points
from goodput.otlp.exporter import OtlpExporter
from goodput.otlp.settings import OtlpSettings, Samples

WAIT_SECONDS = 60


@pytest.fixture
def receiver():
    with Receiver() as one:
        yield one


def one_series(count: int = 1) -> Samples:
    families = Families("node")
    for number in range(count):
        families.add("goodput_gpu_up", {"gpu": f"GPU-{number}"}, 1)
    return Samples(7, [families.rows])


def exporter_of(url: str, collect=one_series, timeout: float = 10) -> OtlpExporter:
    return OtlpExporter(OtlpSettings(url), "goodput_node", collect, {}, timeout=timeout)


def series_of(exporter: OtlpExporter) -> dict:
    """Counts that are not zero, by series and outcome."""
    families = Families("node")
    exporter.collect(families)
    return {
        (name.removeprefix("goodput_node_otlp_"), *values): figure
        for name, rows in families.rows.items()
        for values, figure in rows
        if figure and "age" not in name
    }


@pytest.mark.parametrize(
    ("answer", "outcome", "text"),
    [
        (lambda handler, _: handler.answer(400, b"no"), "refused", "HTTP status 400"),
        (lambda handler, _: handler.answer(401, b"x" * 200_000), "refused", "HTTP status 401"),
        (lambda handler, _: handler.answer(308, b"", Location="/elsewhere"), "refused", "HTTP status 308"),
        (lambda handler, _: handler.answer(503, b"", Retry_After="3600"), "refused", "HTTP status 503"),
        (
            lambda handler, _: handler.answer(200, b"<html>", Content_Type="text/html"),
            "refused",
            "no OTLP receiver",
        ),
        (lambda handler, _: handler.connection.close() or True, "unreachable", "no answer"),
        (lambda handler, _: handler.wfile.write(b"nonsense\r\n\r\n") or True, "unreachable", "no answer"),
    ],
    ids=["bad-request", "unauthorized-long", "redirect", "retry-later", "page", "disconnect", "not-http"],
)
def test_failed_export_is_counted(receiver, answer, outcome, text, caplog):
    receiver.answer = answer
    exporter = exporter_of(receiver.url, timeout=0.5)
    assert exporter.export() == exporter.export() == outcome
    assert series_of(exporter) == {("exports_total", outcome): 2, ("points_total", "lost"): 2}
    assert [text in record.getMessage() for record in caplog.records] == [True], "logged once"
    receiver.answer = lambda handler, body: b""
    assert exporter.export() == "accepted"
    assert series_of(exporter)["points_total", "accepted"] == 1
    assert "works again" in caplog.records[-1].getMessage()


def test_dead_receiver_is_counted():
    exporter = exporter_of(f"http://127.0.0.1:{free_ports(1)[0]}/v1/metrics", timeout=0.2)
    assert exporter.export() == "unreachable"
    exporter.stop()


def test_partly_rejected_points_are_counted(receiver, caplog):
    answer = ExportMetricsServiceResponse()
    answer.partial_success.rejected_data_points = 2
    answer.partial_success.error_message = "too\nold"
    receiver.answer = lambda handler, body: answer.SerializeToString()
    exporter = exporter_of(receiver.url, lambda: one_series(5))
    assert exporter.export() == "accepted"
    counts = {("exports_total", "accepted"): 1, ("points_total", "accepted"): 3}
    assert series_of(exporter) == counts | {("points_total", "rejected"): 2}
    assert "2 points rejected: too?old" in caplog.text


def test_failure_ends_the_round_of_requests(receiver, monkeypatch):
    """So that a receiver that never answers costs one timeout, not one for each request."""
    monkeypatch.setattr(points, "POINTS_MAX", 2)
    receiver.answer = lambda handler, _: handler.answer(400, b"")
    exporter = exporter_of(receiver.url, lambda: one_series(10))
    assert exporter.export() == "refused"
    assert len(receiver.headers) == 1


def test_trickled_answer_ends_at_its_deadline(receiver, monkeypatch):
    """One byte before every timeout of the socket; the status alone counts."""
    clock = iter(range(1_000_000))
    monkeypatch.setattr(exporter_module.time, "monotonic", lambda: next(clock))
    ends = threading.Event()

    def trickle(handler, _):
        handler.send_response(200)
        handler.send_header("Content-Length", "60000")
        handler.end_headers()
        while not ends.wait(0.01):
            handler.wfile.write(b"x")
            handler.wfile.flush()
        return True

    receiver.answer = trickle
    try:
        assert exporter_of(receiver.url, timeout=20).export() == "accepted"
    finally:
        ends.set()


@pytest.mark.parametrize("is_tls", [False, True])
def test_trickled_headers_end_at_the_deadline(is_tls, tmp_path, monkeypatch, caplog):
    """Each byte comes before the timeout of a read; the export fails after one timeout, and the next one works."""
    certificate = None
    if is_tls:
        authority = Authority(tmp_path)
        certificate = authority.issue("receiver")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(authority.cert))
    with Receiver(certificate) as receiver:
        ends = threading.Event()

        def trickle(handler, _):
            handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
            while not ends.wait(0.02):
                try:
                    handler.wfile.write(b"x")
                    handler.wfile.flush()
                except OSError:
                    break  # The exporter has gone.
            return True

        receiver.answer = trickle
        exporter, outcomes = exporter_of(receiver.url, timeout=0.5), []
        thread = threading.Thread(target=lambda: outcomes.append(exporter.export()), daemon=True)
        thread.start()
        thread.join(WAIT_SECONDS / 3)
        ends.set()
        thread.join(WAIT_SECONDS)
        assert outcomes == ["unreachable"] and "no answer (none within 0.5 s)" in caplog.text
        assert len(receiver.headers) == 1, "it is not tried again"
        receiver.answer = lambda handler, body: b""
        assert exporter.export() == "accepted"


def test_series_that_cannot_be_collected_are_counted(receiver, caplog):
    def fail():
        raise OSError("no series")

    exporter = exporter_of(receiver.url, fail)
    assert exporter.export() == "failed"
    assert series_of(exporter) == {("exports_total", "failed"): 1}
    assert "no series" in caplog.text


@pytest.mark.faults
def test_silent_receiver_delays_no_scrape(receiver, tmp_path):
    """The exporter waits for an answer all the while; the agent polls, answers scrapes and stops."""
    write_tree(tmp_path)
    (tmp_path / "pages").mkdir()
    silent = threading.Event()
    receiver.answer = lambda handler, _: silent.wait(WAIT_SECONDS)
    otlp = OtlpSettings(receiver.url, interval_seconds=0.01)
    agent = agent_on(tmp_path, Clock(), otlp=otlp)
    try:
        with agent:
            assert receiver.arrived.wait(WAIT_SECONDS)
            for _ in range(3):
                agent.poll()
                text = agent.exposition().decode()
            assert 'goodput_node_otlp_exports_total{outcome="accepted"} 0.0' in text
            assert agent.otlp and agent.otlp._thread.is_alive()
            assert len(receiver.headers) == 1, "nothing is queued behind it"
    finally:
        silent.set()


@pytest.mark.faults
def test_silent_receiver_delays_no_push(receiver, tmp_path):
    """The aggregator takes pushes and scrapes while one export waits; no second one begins or is queued, and series say so."""
    silent = threading.Event()
    receiver.answer = lambda handler, _: silent.wait(WAIT_SECONDS)
    otlp = OtlpSettings(receiver.url, interval_seconds=0.01)
    try:
        with serving(create_app(f"sqlite:///{tmp_path}/ledger.db", otlp=otlp)) as client:
            assert receiver.arrived.wait(WAIT_SECONDS)
            ages = []
            for ranks in story(start=time.time() - 60):
                assert push(client, *ranks).accepted == len(ranks)
                found = samples(client)
                ages.append(found["goodput_aggregator_otlp_accepted_age_seconds",])
            assert found["goodput_aggregator_otlp_exports_total", "accepted"] == 0
            assert ages == sorted(ages) and ages[-1] > ages[0]
            assert client.get("/api/v1/runs/r1").json()["steps"]["kept"] == 32
            assert len(receiver.headers) == 1
            silent.set()
    finally:
        silent.set()


@pytest.mark.faults
def test_dead_receiver_takes_no_memory():
    """The data of a failed export is not kept: after 25 failed ones of 200 points no more is allocated than after 5."""
    exporter = exporter_of(f"http://127.0.0.1:{free_ports(1)[0]}/v1/metrics", lambda: one_series(200), 0.001)
    sizes = []
    tracemalloc.start()
    try:
        for count in (5, 20):
            assert {exporter.export() for _ in range(count)} == {"unreachable"}
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
        exporter.stop()
    assert sizes[1] - sizes[0] < 20 * 200 * 16  # bytes; each point would be over 16
    assert series_of(exporter)["points_total", "lost"] == 25 * 200


def test_header_and_timeout_come_from_the_environment(receiver, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20secret")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    receiver.answer = lambda handler, body: handler.answer(200, b"")
    assert OtlpExporter(OtlpSettings(receiver.url), "goodput_node", one_series, {}).export() == "accepted"
    headers = {name.lower(): value for name, value in receiver.headers[0].items()}
    assert headers["authorization"] == "Bearer secret"
    assert headers["content-encoding"] == "gzip"
    assert headers["path"] == "/v1/metrics"


def test_tls_by_the_environment(tmp_path, monkeypatch):
    """The receiver's authority is named in the environment; without that it is not trusted."""
    authority = Authority(tmp_path)
    with Receiver(authority.issue("receiver")) as receiver:
        assert exporter_of(receiver.url, timeout=0.5).export() == "unreachable"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(authority.cert))
        assert exporter_of(receiver.url).export() == "accepted"
