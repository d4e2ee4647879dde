"""The aggregator's /metrics in protobuf: the same samples as its text, per run and token, and only while requested."""

import random

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.account.account_history import Process
from support.aggregator.reports import rank_report
from support.aggregator.serve_process import push, serving
from support.aggregator.step_times import run_of, times_of
from support.metrics import client_model

from goodput.aggregator.accounts import accounts as accounts_module
from goodput.aggregator.api import exposition as exposition_module
from goodput.aggregator.api.app import create_app
from goodput.aggregator.ingest.recent.recent_times import STEP
from goodput.histograms.histogram import bin_of_ns
from goodput.histograms.native_histogram import bucket_of_bin
from goodput.metrics.negotiation import LENGTH_MAX
from goodput.metrics.protobuf_format import ProtobufWriter
from goodput.metrics.text_format import TextWriter

ACCEPT = {"Accept": f"{ProtobufWriter.content_type},text/plain;version=0.0.4;q=0.5,*/*;q=0.1"}


@pytest.fixture
def app(tmp_path):
    return create_app(f"sqlite:///{tmp_path}/ledger.db")


def samples_of(text: bytes) -> dict[tuple[str, frozenset], float]:
    parsed = text_string_to_metric_families(text.decode())
    return {(s.name, frozenset(s.labels.items())): s.value for family in parsed for s in family.samples}


def test_every_sample_of_the_text_is_there(app, monkeypatch):
    """As in a large installation: the second scrape renders both formats at once, and the third gets that text."""
    monkeypatch.setattr(accounts_module, "LARGE_RANKS", 0)
    monkeypatch.setattr(exposition_module, "REFRESH_SECONDS", 1e6)
    processes = run_of(3, 20, random.Random(1))
    with serving(app) as client:
        push(client, *map(rank_report, processes))
        push(client, rank_report(Process(0, 1, 1000).steps(3, forward=1), run='a"b ü'))
        _, body, text = (client.get("/metrics", headers=one).content for one in ({}, ACCEPT, {}))
    assert client_model.values(body) == samples_of(text)
    native = client_model.natives(body)
    of_run = frozenset({("run", "r1")})
    counts: dict[int | None, int] = {}
    for one in times_of(processes)[STEP]:
        bucket = bucket_of_bin(bin_of_ns(one))
        counts[bucket] = counts.get(bucket, 0) + 1
    assert client_model.counts_of(native["goodput_run_step_duration_seconds", of_run]) == counts
    assert ("goodput_aggregator_request_seconds", frozenset({("route", "ingest")})) in native


def test_negotiation_over_http(app):
    with serving(app) as client:
        for name in ("r1", "r2"):
            push(client, rank_report(Process(0, 1, 1000).steps(3, forward=1), run=name))
        answer = client.get("/metrics", params={"run": "r1"}, headers=ACCEPT | {"Accept-Encoding": "gzip"})
        assert answer.headers["content-type"] == ProtobufWriter.content_type
        assert answer.headers["vary"] == "Accept, Accept-Encoding"
        assert answer.headers["content-encoding"] == "gzip"
        shown = {dict(labels).get("run") for _, labels in client_model.values(answer.content)}
        assert shown == {"r1", None}
        for accept in ("", "*/*", "x" * 2 * LENGTH_MAX, f"{ProtobufWriter.content_type};q=high", "a;b,;,=,q"):
            answer = client.get("/metrics", headers={"Accept": accept})
            assert (answer.status_code, answer.headers["content-type"]) == (200, TextWriter.content_type), (
                accept
            )
            assert answer.text.startswith("# HELP")
