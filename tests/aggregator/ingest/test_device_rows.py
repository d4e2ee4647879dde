"""Rows with device time: older peers and ledgers without it, bounds, and round trips."""

from __future__ import annotations

import json

import msgspec
import pytest
from support.account.account_history import Process
from support.aggregator.ledgers import NOW, aggregator, take
from support.aggregator.reports import body_of, rank_report

from goodput.account import compute, document
from goodput.runlog import replay
from goodput.runlog.export import export
from goodput.wire import schema


def measured() -> Process:
    one = Process(0, 1, 1000.0, world_size=1)
    for i in range(6):
        one.between(none=0.25).step(forward=0.7, loader=0.3, samples=4, device=i != 2)
    return one.finished()


def test_older_peers_exchange_rows_without_device_time():
    row = schema.StepRow(1, 0, 5, 25, 0, (0, 20), (0, 0), 20)
    encoded = msgspec.msgpack.encode([row])
    fields = msgspec.msgpack.decode(encoded)
    assert fields == [[1, 0, 5, 25, 0, [0, 20], [0, 0], 20]]
    (old,) = msgspec.msgpack.decode(msgspec.msgpack.encode([fields[0][:-1]]), type=list[schema.StepRow])
    assert old == schema.StepRow(1, 0, 5, 25, 0, (0, 20), (0, 0)) and old.device_ns == 0

    class Older(msgspec.Struct, array_like=True, frozen=True):
        number: int
        step: int
        start_ns: int
        end_ns: int
        samples: int
        totals: tuple[int, ...]
        outside: tuple[int, ...]

    (row,) = msgspec.msgpack.decode(encoded, type=list[Older])
    assert row.outside == (0, 0)


@pytest.mark.parametrize(
    ("device_ns", "good"), [(0, True), (20, True), (21, False), (-1, False), (1 << 63, False)]
)
def test_device_time_is_at_most_step_time(device_ns, good):
    one = Process(0, 1, 1000.0, world_size=1).between(none=5e-9).step(forward=20e-9)
    report = rank_report(one, rows=[one.rows[0]._replace(device_ns=device_ns)])
    if good:
        return schema.check(report)
    with pytest.raises(schema.SchemaError, match=r"run 'r1' rank 0: step row 1 \(step 0\): .*device clock"):
        schema.check(report)


def test_device_time_survives_ledger_and_run_log(ledger, tmp_path):
    one, ingest = measured(), aggregator(ledger)
    for rows in (one.rows[:2], one.rows[2:3], one.rows[4:]):  # The fourth row was thinned out.
        (answer,) = take(ingest, body_of(rank_report(one, rows=rows)))
        assert not answer.rejected
    account = compute(ingest._store.runs["r1"], NOW)
    found = document(account)["coverage"]["device_clock"]
    assert found == pytest.approx(5 / 7.5)
    path = tmp_path / "run.jsonl"
    path.write_bytes(b"".join(export(ledger, "r1", NOW)))
    steps = [line for line in map(json.loads, path.read_text().splitlines()) if line["kind"] == "step"]
    assert [line.get("device_seconds") for line in steps] == [1.0, 1.0, None, 2.0, 1.0]
    (back,) = replay(str(path))
    assert document(back.account)["coverage"]["device_clock"] == found and not back.problems.listed
    # A second aggregator over the same ledger has it too.
    assert document(compute(aggregator(ledger)._store.runs["r1"], NOW))["coverage"]["device_clock"] == found


@pytest.mark.parametrize(
    ("value", "problem"),
    [("-1", "device_seconds` is -1"), ('"x"', "device_seconds"), ("9.5", "exceed its 1.000000 s")],
)
def test_wrong_device_seconds_in_a_log_are_reported(tmp_path, value, problem):
    path = tmp_path / "run.jsonl"
    path.write_text(
        '{"kind":"run","time":0,"run":"r"}\n{"kind":"attempt","time":0,"rank":0}\n'
        f'{{"kind":"step","time":1,"rank":0,"step":0,"seconds":1,"phases":{{"forward":1}},"device_seconds":{value}}}\n'
        '{"kind":"step","time":2,"rank":0,"step":1,"seconds":1,"phases":{"forward":1},"device_seconds":0.5}\n'
        '{"kind":"end","time":2,"rank":0}\n'
    )
    (one,) = replay(str(path))
    ((number, text),) = one.problems.listed
    assert number == 3 and problem in text
    assert document(one.account)["coverage"]["device_clock"] == (0.75 if value == "9.5" else 0.25)
