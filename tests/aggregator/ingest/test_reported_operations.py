"""What operations of process groups have cost, through the aggregator: API, series, history, restart and replay agree."""

import time

import msgspec
import pytest
from msgspec.structs import replace
from support.account.account_history import Process, ns
from support.aggregator.reports import rank_report
from support.aggregator.serve_process import push, serving
from support.aggregator.shapes import assert_shape

from goodput.account import document
from goodput.account.collectives.document_types import RankCollectives
from goodput.aggregator.accounts.accounts import Accounts, RunDocument
from goodput.aggregator.api.app import create_app
from goodput.aggregator.ingest.store import Store
from goodput.aggregator.ledger.ledger import Ledger
from goodput.causes import explain
from goodput.runlog import replay
from goodput.runlog.export import export
from goodput.wire import schema
from goodput.wire.collectives import OPERATIONS_MAX, ReportedOperation
from goodput.wire.operation_row import OperationRow

ROWS = (
    ReportedOperation(
        "dp", "all_reduce", 40, 4_000_000, ns(1.2) + 7, ns(0.2), 0, 8, ns(0.25), ns(0.5), 4, 10**8
    ),
    ReportedOperation("tp", "all_gather", 20, 1_000, ns(0.75), 0),
)
EXPECTED = {("dp", "all_reduce"): ns(1.0) + 7, ("tp", "all_gather"): ns(0.75), ("", ""): ns(0.25) - 7}


def report_with(rows, one: Process) -> schema.RankReport:
    report = rank_report(one)
    return replace(report, live=replace(report.live, operations=rows))


def training(start: float) -> Process:
    """2 s of communication in its steps, 0.2 s before them."""
    return Process(0, 1, start).between(communication=0.2).steps(20, forward=1, communication=0.1)


def test_report_without_rows_keeps_the_last_ones():
    store, one = Store(), training(10)
    later = report_with(None, one)
    first = replace(report_with(ROWS, one), sequence=later.sequence - 1)
    for report in (first, later, replace(first, sequence=later.sequence - 2)):
        store.merge(report, ns(100))
    (attempt,) = store.runs["r1"].attempts.values()
    assert attempt.collectives.keys == (("dp", "all_reduce"), ("tp", "all_gather"))


def test_ranks_share_the_names():
    store = Store()
    for rank in range(3):
        store.merge(report_with(ROWS, Process(rank, 1, 10, world_size=3).steps(2, forward=1)), ns(100))
    keys = [attempt.collectives.keys for attempt in store.runs["r1"].attempts.values()]
    assert keys[0] is keys[1] is keys[2]


def test_invalid_rows_are_left_out():
    one = ROWS[0]
    for rows in (
        [one] * (OPERATIONS_MAX + 1),
        [replace(one, group="x" * 65)],
        [replace(one, operation="\n")],
        [replace(one, exposed_ns=-1)],
        [replace(one, bytes=1 << 62)],
        [replace(one, hidden_ns=-2)],
        [replace(one, hidden_max_ns=1 << 62)],
        [replace(one, local=-1)],
        [replace(one, link_rate=1 << 62)],
        [replace(one, queued=-1)],
        [replace(one, device_ns=-2)],
        [replace(one, device_bytes=1 << 62)],
    ):
        report = report_with(tuple(rows), training(10))
        with pytest.raises(schema.SchemaError, match="operation"):
            schema.check(report)
        usable = schema.without_wrong_options(report)
        schema.check(usable)
        assert usable.live.operations is None and usable.steps == report.steps


def by_operation(rows: list[dict]) -> dict[tuple[str, str], int]:
    return {(row["group"], row["operation"]): round(row["gpu_seconds"] * 1e9) for row in rows}


def test_api_series_history_restart_and_replay_agree(tmp_path, monkeypatch):
    monkeypatch.setattr(Accounts, "_is_fresh", lambda *_: False)
    url = f"sqlite:///{tmp_path}/ledger.db"
    start = float(int(time.time()) - 60)  # as a float of seconds exact to the nanosecond
    one = training(start)
    with serving(create_app(url)) as client:
        for rows in (ROWS, None):
            push(client, report_with(rows, one))
            one.step(forward=1)
        live = client.get("/api/v1/runs/r1").json()
        assert_shape(live, RunDocument)
        part = client.get("/api/v1/runs/r1/account", params={"start": start, "end": start + 11.2}).json()
        ranks = client.get("/api/v1/runs/r1/collectives").json()
        series = client.get("/metrics").text
    with serving(create_app(url)) as again:
        restarted = again.get("/api/v1/runs/r1").json()
    (tmp_path / "run.jsonl").write_bytes(b"".join(export(Ledger(url), "r1", time.time_ns())))
    (replayed,) = replay(str(tmp_path / "run.jsonl"))
    for found in (live, restarted, document(replayed.account, explain(replayed.account))):
        assert by_operation(found["collectives"]) == EXPECTED
        assert found["collectives"] == live["collectives"] and found["basis"]["collectives"] == "measured"
    assert sum(by_operation(part["collectives"]).values()) == ns(1)
    assert part["basis"]["collectives"] == "estimated" and part["collectives"][0]["calls"] is None
    assert_shape(ranks, RankCollectives)
    (rank,) = ranks["ranks"]
    assert {(row["group"], row["operation"]): row["ns"] for row in rank["operations"]} == EXPECTED
    assert rank["communication_ns"] == sum(EXPECTED.values()) == ns(2) and rank["straggler_ns"] == 0
    labels = 'group="dp",operation="all_reduce",run="r1"'
    assert f"goodput_communication_gpu_seconds{{{labels}}} 1.000000007" in series
    first = live["collectives"][0]
    assert (first["hidden_gpu_seconds"], first["hidden_gpu_seconds_max"]) == (0.25, 0.5)
    assert (first["skew_gpu_seconds"], first["transfer_gpu_seconds"]) == (0, first["gpu_seconds"])
    assert (
        live["collectives"][1]["hidden_gpu_seconds"] is part["collectives"][0]["hidden_gpu_seconds"] is None
    )
    assert f'goodput_communication_hidden_gpu_seconds{{bound="high",{labels}}} 0.5' in series
    assert (
        'goodput_communication_part_gpu_seconds{group="dp",operation="all_reduce",part="transfer",run="r1"} 1.0'
        in series
    )
    rate = live["collectives"][0]["bus_bytes_per_second_max"]
    assert (
        rate == pytest.approx(4_000_000 / 1.2 * 2 * 7 / 8)
        and part["collectives"][0]["bus_bytes_per_second_max"] is None
    )
    assert (first["bus_ceiling_bytes_per_second"], first["bus_ceiling_source"]) == (10**8, "link")
    assert live["collectives"][1]["bus_ceiling_source"] is None
    ceiling = 'group="dp",operation="all_reduce",run="r1",source="link"'
    assert f"goodput_communication_bus_ceiling_bytes_per_second{{{ceiling}}} 1e+08" in series
    (line,) = (
        line
        for line in series.splitlines()
        if line.startswith(f"goodput_communication_bus_bytes_per_second{{{labels}}}")
    )
    assert float(line.split()[-1]) == pytest.approx(rate)


def test_device_times_agree_live_restarted_and_replayed(tmp_path, monkeypatch):
    """2 s are exposed on the device: 0.25 s in broadcasts by the host, at most 1.5 s in all-reduces, and 0.25 s in neither.

    Of all-gathers nobody has measured the time.
    """
    monkeypatch.setattr(Accounts, "_is_fresh", lambda *_: False)
    url, start = f"sqlite:///{tmp_path}/ledger.db", float(int(time.time()) - 60)
    one = Process(0, 1, start).steps(20, forward=1, communication=0.1, device=True)
    size, more = 3_000_000_000, {"queued": 1, "size": 2}
    rows = (
        ReportedOperation("dp", "all_reduce", 40, size, 0, 0, device_ns=ns(1.5), device_bytes=size, **more),
        ReportedOperation("dp", "broadcast", 4, 400, ns(0.25), 0, device_ns=7, device_bytes=8, **more),
        ReportedOperation("dp", "all_gather", 4, 400, 0, 0, **more),
    )
    with serving(create_app(url)) as client:
        push(client, report_with(rows, one))
        live = client.get("/api/v1/runs/r1").json()
        assert_shape(live, RunDocument)
        ranks = client.get("/api/v1/runs/r1/collectives").json()
        assert_shape(ranks, RankCollectives)
        series = client.get("/metrics").text
    with serving(create_app(url)) as again:
        restarted = again.get("/api/v1/runs/r1").json()
    (tmp_path / "run.jsonl").write_bytes(b"".join(export(Ledger(url), "r1", time.time_ns())))
    (replayed,) = replay(str(tmp_path / "run.jsonl"))
    columns = ("operation", "gpu_seconds", "device_gpu_seconds", "bus_bytes_per_second_min")
    expected = [
        ("all_reduce", 1.5, 1.5, pytest.approx(2e9)),
        ("broadcast", 0.25, 7e-9, pytest.approx(8e9 / 7)),
        ("all_gather", None, None, None),
        ("", 0.25, None, None),
    ]
    for found in (live, restarted, document(replayed.account, explain(replayed.account))):
        assert [tuple(row[name] for name in columns) for row in found["collectives"]] == expected
        assert found["collectives"] == live["collectives"] and found["basis"]["collectives"] == "estimated"
    (rank,) = ranks["ranks"]
    assert [(row["ns"], row["device_ns"]) for row in rank["operations"]] == [
        (ns(1.5), ns(1.5)),
        (ns(0.25), 7),
        (None, None),
        (ns(0.25), None),
    ]
    labels = 'group="dp",operation="{}",run="r1"'
    assert f"goodput_communication_gpu_seconds{{{labels.format('all_reduce')}}} 1.5" in series
    assert f"goodput_communication_bus_min_bytes_per_second{{{labels.format('all_reduce')}}} 2e+09" in series
    assert f"goodput_communication_gpu_seconds{{{labels.format('all_gather')}}}" not in series


def test_rows_of_other_versions_are_read():
    """A row travels with what later versions append and without what earlier ones lacked; both forms have one set of fields."""
    assert ReportedOperation.__struct_fields__ == OperationRow._fields
    row = ("dp", "all_reduce", 4, 100, 7, 0)
    for sent, size in (
        (row, 0),
        ((*row, 1), 0),
        ((*row, 1, 8), 8),
        ((*row, 1, 8, 2, 3, 4, 5, 1, 6, 7, "later"), 8),
    ):
        found = msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=ReportedOperation)
        assert (found.group, found.before_ns, found.size) == ("dp", 0, size)


def test_rank_with_slow_calls_is_named_live_restarted_and_replayed(tmp_path, monkeypatch):
    monkeypatch.setattr(Accounts, "_is_fresh", lambda *_: False)
    url, start = f"sqlite:///{tmp_path}/ledger.db", time.time() - 60
    with serving(create_app(url)) as client:
        for rank, issue_ns in ((0, ns(0.0002)), (1, ns(0.05))):
            one = Process(rank, 1, start, world_size=2).steps(20, forward=1, communication=0.1)
            push(client, report_with((replace(ROWS[0], issue_ns=issue_ns),), one))
        live = client.get("/api/v1/runs/r1").json()
        last = client.get("/api/v1/runs/r1/account", params={"start": start + 11}).json()
        early = client.get("/api/v1/runs/r1/account", params={"end": start + 11}).json()
        series = client.get("/metrics").text
    with serving(create_app(url)) as again:
        restarted = again.get("/api/v1/runs/r1").json()
    assert early["straggler"]["slow_issue"] is None
    labels = 'group="dp",host="n1",of="{}",operation="all_reduce",rank="1",run="r1"'
    for of, seconds in (("rank", "0.05"), ("peers", "0.0002")):
        assert f"goodput_straggler_slow_issue_seconds{{{labels.format(of)}}} {seconds}" in series
    (tmp_path / "run.jsonl").write_bytes(b"".join(export(Ledger(url), "r1", time.time_ns())))
    (replayed,) = replay(str(tmp_path / "run.jsonl"))
    for found in (live, last, restarted, document(replayed.account, explain(replayed.account))):
        slow = found["straggler"]["slow_issue"]
        assert found["straggler"]["culprit"] is None
        assert (slow["rank"], slow["group"], slow["operation"]) == (1, "dp", "all_reduce")
        assert (slow["seconds"], slow["usual_seconds"]) == pytest.approx((0.05, 0.0002))
