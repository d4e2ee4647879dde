"""Pushing to a real HTTP server on loopback: up, down, slow, refusing, malformed answers."""

import logging
import os
import socket
import threading
import time

import pytest
from support.core_wait import within
from support.node.aggregator import Aggregator
from support.node.node_tree import collect, wait_until
from support.node.report_rows import event, identity, report, row

from goodput.wire import schema
from goodput_exporters.push.backlog import Backlog
from goodput_exporters.push.credentials import Credentials, Unreachable, read_token
from goodput_exporters.push.pusher import BACKOFF_SECONDS_MAX, BATCH_ROWS_MAX, ROW_BYTES_MAX, Pusher
from goodput_exporters.system.ranks import rank_key


@pytest.fixture
def pushers():
    started = []

    def make(url, **given):
        given = {"interval_seconds": 0.02, "timeout_seconds": 2.0, **given}
        started.append(Pusher(url, "n0", **given))
        return started[-1]

    yield make
    for pusher in started:
        pusher.stop(0.0)


def outcome(pusher, name: str) -> float:
    return collect(pusher)["goodput_node_pushes_total", (name,)]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def rows(first: int, last: int) -> list[schema.StepRow]:
    return [row(number, number - 1) for number in range(first, last + 1)]


def test_backlog_losses_are_series(pushers):
    pusher = pushers(f"http://127.0.0.1:{free_port()}")
    pusher._backlog = Backlog(events_max=2, ranks_max=1)
    pusher.add([report(events=[event(number, "mark", 0) for number in range(1, 6)]), report(rank=1)])
    found = collect(pusher)
    assert found["goodput_node_events_dropped_total", ()] == 3
    assert found["goodput_node_reports_refused_total", ()] == 1


def test_acknowledged_rows_are_not_resent(aggregator, pushers):
    pusher = pushers(aggregator.url)
    pusher.add([report(rows(1, 3), [event(1, "mark", 0)])])
    assert pusher.push() == "accepted"
    assert pusher.push() == "nothing"
    pusher.add([report(rows(4, 4), sequence=2)])
    assert pusher.push() == "accepted"
    assert aggregator.rows() == {("r1", 0, 1): [1, 2, 3, 4]}
    path, headers, _ = aggregator.requests[0]
    assert path == "/api/v1/ingest" and headers["Content-Type"] == schema.CONTENT_TYPE
    assert "Authorization" not in headers
    first, second = aggregator.reports
    assert first.node == "n0" and first.sent_ns > 0 == first.previous_sent_ns == first.previous_took_ns
    assert second.previous_sent_ns == first.sent_ns and 0 < second.previous_took_ns < 10e9
    assert outcome(pusher, "accepted") == 2 and collect(pusher)["goodput_node_backlog_rows", ()] == 0


def test_down_then_up_loses_nothing(pushers):
    port = free_port()
    pusher = pushers(f"http://127.0.0.1:{port}", chance=lambda: 1.0)  # the shortest waits
    pusher.add([report(rows(1, 2))])
    pusher.start()
    wait_until(lambda: outcome(pusher, "unreachable") >= 1)
    assert collect(pusher)["goodput_node_backlog_rows", ()] == 2
    pusher.add([report(rows(3, 5), sequence=2)])
    server = Aggregator(port)
    try:
        # The first push after a failure has no rows.
        wait_until(lambda: outcome(pusher, "accepted") >= 2)
        assert server.rows() == {("r1", 0, 1): [1, 2, 3, 4, 5]}
    finally:
        server.close()


@pytest.mark.parametrize("status", [500, 502, 503, 302, 401, 403, 404, 429])
def test_error_status_keeps_everything(aggregator, pushers, status, caplog):
    """A broken aggregator, a rotated token or a wrong path must not cost data; each is logged once."""
    pusher, failed = pushers(aggregator.url), "unreachable" if status >= 500 else "rejected"
    pusher.add([report(rows(1, 2))])
    aggregator.answer = lambda *_: (status, b"no token")
    assert pusher.push() == pusher.push() == failed and outcome(pusher, failed) == 2
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"push to {aggregator.url}/api/v1/ingest: HTTP {status}: ") and "no token" in line
    assert ("a token is required" in line) == (status in (401, 403))
    aggregator.answer = lambda *_: None
    assert pusher.push() == "accepted" and aggregator.rows() == {("r1", 0, 1): [1, 2]}


@pytest.mark.parametrize("answer", [b"", b"hello", schema.encode(identity()), b"\x93" * 200])
def test_malformed_acknowledgement_keeps_everything(aggregator, pushers, answer):
    pusher = pushers(aggregator.url)
    pusher.add([report(rows(1, 2))])
    aggregator.answer = lambda *_: (200, answer)
    assert pusher.push() == "unreachable"
    aggregator.answer = lambda *_: None
    assert pusher.push() == "accepted" and aggregator.rows()["r1", 0, 1] == [1, 2, 1, 2]


def test_slow_aggregator_delays_no_add_or_scrape(aggregator, pushers):
    release = threading.Event()
    aggregator.answer = lambda *_: release.wait(60) and None
    pusher = pushers(aggregator.url)
    pusher.add([report(rows(1, 1))])
    pusher.start()
    wait_until(lambda: aggregator.requests)
    with within(8):  # The answer takes a minute.
        for number in range(2, 50):
            pusher.add([report(rows(number, number), sequence=number)])
            collect(pusher)
            pusher.is_acknowledged(rank_key(identity()))
    release.set()
    wait_until(lambda: collect(pusher)["goodput_node_backlog_rows", ()] == 0)
    assert aggregator.rows() == {("r1", 0, 1): list(range(1, 50))}, "rows in flight are not repeated"


def test_timeout_keeps_everything(aggregator, pushers):
    release = threading.Event()
    aggregator.answer = lambda *_: release.wait(60) and None
    pusher = pushers(aggregator.url, timeout_seconds=0.1)
    pusher.add([report(rows(1, 1))])
    assert pusher.push() == "unreachable"
    release.set()
    assert pusher.push() == "accepted"


def test_rejected_ranks_are_not_sent_again(aggregator, pushers, caplog):
    pusher = pushers(aggregator.url)
    refused = schema.Rejection("r1", 1, "claim", "rank 1 of another world")
    foreign = schema.Rejection("other", 9, "lie", "was never sent")
    aggregator.answer = lambda sent, _: (200, schema.encode(schema.Ack(1, [refused, foreign])))
    for number in range(1, 4):
        pusher.add([report(rows(number, number), sequence=number, rank=rank) for rank in (0, 1)])
        assert pusher.push() == "accepted"
    assert aggregator.rows() == {("r1", 0, 1): [1, 2, 3], ("r1", 1, 1): [1, 2, 3]}
    found = collect(pusher)
    assert found["goodput_node_push_rejections_total", ("claim",)] == 3
    assert ("goodput_node_push_rejections_total", ("lie",)) not in found
    assert ["rank 1 of another world" in record.getMessage() for record in caplog.records] == [True]


@pytest.mark.parametrize("status", [400, 413, 422])
def test_rejected_report_is_halved_to_the_bad_rank(aggregator, pushers, status):
    pusher = pushers(aggregator.url)
    bad = 5

    def answer(sent, _):
        return (status, b"cannot") if any(rank.identity.rank == bad for rank in sent.ranks) else None

    aggregator.answer = answer
    pusher.add([report(rows(1, 1), rank=rank) for rank in range(8)])
    pusher.push()
    assert aggregator.rows() == {("r1", rank, 1): [1] for rank in range(8) if rank != bad}
    found = collect(pusher)
    assert found["goodput_node_push_rejections_total", (f"http_{status}",)] == 1
    assert found["goodput_node_backlog_rows", ()] == 0 and outcome(pusher, "rejected") >= 2
    pusher.add([report(rows(2, 2), sequence=2, rank=0)])
    assert pusher.push() == "accepted"


def test_413_splits_a_report(aggregator, pushers):
    aggregator.answer = lambda _, body: (413, b"too large") if len(body) > 3000 else None
    pusher = pushers(aggregator.url)
    pusher.add([report(rows(1, 500), rank=rank) for rank in range(2)])
    assert pusher.push() == "accepted"
    assert aggregator.rows() == {("r1", rank, 1): list(range(1, 501)) for rank in range(2)}
    assert not any(name == "goodput_node_push_rejections_total" for name, _ in collect(pusher))


def test_batches_stay_below_the_body_limit(aggregator, pushers):
    wide = ("none", *(f"phase{n}" for n in range(26)))
    huge = (schema.TIME_NS_MAX - 1,) * len(wide)
    largest = schema.StepRow(*[schema.TIME_NS_MAX - 1] * 5, huge, huge)
    assert len(schema.encode(largest)) <= ROW_BYTES_MAX
    text = schema.EventRow(1 << 61, "checkpoint_committed", 1 << 61, 1 << 61, "\N{EURO SIGN}" * 64)
    assert len(schema.encode(text)) <= ROW_BYTES_MAX
    pusher = pushers(aggregator.url)
    steps = [schema.StepRow(number, number, 0, 1, 0, huge, huge) for number in range(1, 4001)]
    pusher.add([report(steps, rank=rank, phases=wide) for rank in range(5)])
    assert pusher.push() == "accepted"
    counts = {rank: len(numbers) for rank, numbers in aggregator.rows().items()}
    assert counts == {("r1", rank, 1): 4000 for rank in range(5)}
    assert len(aggregator.requests) == -(-20_000 // BATCH_ROWS_MAX)
    assert max(length for _, _, length in aggregator.requests) < 5 << 20 < schema.BODY_BYTES_MAX


def test_token_file_is_read_for_each_push(aggregator, pushers, tmp_path):
    token = tmp_path / "token"
    pusher = pushers(aggregator.url, credentials=Credentials(str(token)))
    pusher.add([report(rows(1, 1))])
    assert pusher.push() == "unreachable" and not aggregator.requests  # without a token nothing is sent
    for number, text in ((2, "first\n"), (3, "second")):
        token.write_text(text)
        pusher.add([report(rows(number, number), sequence=number)])
        assert pusher.push() == "accepted"
    sent = [headers["Authorization"] for _, headers, _ in aggregator.requests]
    assert sent == ["Bearer first", "Bearer second"]


@pytest.mark.parametrize("content", [b"", b" \n", b"two words", b"line\nbreak", "ü".encode()])
def test_malformed_token_file_raises_unreachable(tmp_path, content):
    (tmp_path / "token").write_bytes(content)
    with pytest.raises(Unreachable):
        read_token(str(tmp_path / "token"))


def test_token_pipe_is_not_waited_for(tmp_path):
    """Such as that of `--token-file <(...)`, which has a token only once."""
    os.mkfifo(tmp_path / "token")
    with pytest.raises(Unreachable, match="no regular file") as raised:
        read_token(str(tmp_path / "token"))
    assert raised.value.reason == "token"


def test_stop_sends_queued_rows(aggregator, pushers):
    pusher = pushers(aggregator.url, interval_seconds=3600.0)
    pusher.start()
    pusher.add([report(rows(1, 4))])
    pusher.stop(3.0)
    assert aggregator.rows() == {("r1", 0, 1): [1, 2, 3, 4]}


def test_stop_returns_within_flush_seconds(aggregator, pushers):
    release = threading.Event()
    aggregator.answer = lambda *_: release.wait(60) and None
    pusher = pushers(aggregator.url, interval_seconds=3600.0, timeout_seconds=60.0)
    pusher.start()
    pusher.add([report(rows(1, 1))])
    with within(3):
        pusher.stop(0.3)
    release.set()


def test_backoff_grows_to_thirty_seconds_with_jitter():
    for chance in (0.0, 0.5, 1.0):
        pusher = Pusher("http://127.0.0.1:1", "n0", interval_seconds=5.0, chance=lambda chance=chance: chance)
        waits = [pusher._wait_seconds(failures) for failures in range(1, 2000)]
        assert waits[:5] == [seconds * (1 - chance / 2) for seconds in (1, 2, 4, 8, 16)]
        assert all(0.5 <= wait <= BACKOFF_SECONDS_MAX for wait in waits)
        assert pusher._wait_seconds(0) == pytest.approx(5.0 * (1 - chance / 10))
        pusher.stop(0.0)


def test_push_thread_survives_unexpected_errors(aggregator, pushers, monkeypatch, caplog):
    caplog.set_level(logging.WARNING)
    pusher = pushers(aggregator.url, chance=lambda: 1.0)
    pusher.add([report(rows(1, 1))])
    fails = iter([True])
    post = pusher._post

    def once_broken(body):
        if next(fails, False):
            raise ZeroDivisionError("a bug")
        return post(body)

    monkeypatch.setattr(pusher, "_post", once_broken)
    pusher.start()
    wait_until(lambda: outcome(pusher, "accepted") == 2)  # the first without rows
    assert outcome(pusher, "unreachable") == 1 and "a bug" in caplog.text


def test_unencodable_rank_is_dropped(aggregator, pushers):
    pusher = pushers(aggregator.url)
    poison = identity(run="poison")
    poison = schema.msgspec.structs.replace(poison, flops_per_step=10**20)
    pusher.add([report(rows(1, 3)), schema.msgspec.structs.replace(report(rows(1, 1)), identity=poison)])
    pusher.push()
    assert aggregator.rows() == {("r1", 0, 1): [1, 2, 3]}
    assert collect(pusher)["goodput_node_backlog_rows", ()] == 0


def test_idle_pusher_sends_probes(aggregator, pushers):
    pusher = pushers(aggregator.url, interval_seconds=0.05, chance=lambda: 0.0)
    assert pusher.push() == "nothing" and aggregator.requests == []
    begun = time.monotonic()
    pusher.start()
    wait_until(lambda: len(aggregator.requests) >= 4)
    assert time.monotonic() - begun > 3 * 2 * 0.05
    assert [(sent.node, sent.ranks) for sent in aggregator.reports[:4]] == [("n0", [])] * 4
    assert outcome(pusher, "accepted") >= 3


def test_no_probe_with_queued_reports(aggregator, pushers):
    pusher = pushers(aggregator.url)
    pusher.add([report(rows(1, 2))])
    assert pusher.push(probe=True) == "accepted"
    assert [len(sent.ranks) for sent in aggregator.reports] == [1]


def test_lost_aggregator_is_detected_within_two_intervals(aggregator, pushers):
    interval = 0.4
    pusher = pushers(aggregator.url, interval_seconds=interval, chance=lambda: 0.0)
    pusher.start()
    wait_until(lambda: outcome(pusher, "accepted") >= 1)
    aggregator.answer = lambda *_: 1 / 0
    with within(2 * interval + 2):  # On top of the two intervals: time for a connection.
        wait_until(lambda: outcome(pusher, "unreachable") >= 1)
    # Pushes continue until it is back.
    aggregator.answer, before = lambda *_: None, outcome(pusher, "accepted")
    wait_until(lambda: outcome(pusher, "accepted") > before)
