"""A wrong optional field of a rank report is left out; the rank, and the others of the report, are accepted."""

from __future__ import annotations

import msgspec
import pytest
from support.account.account_history import Process
from support.aggregator.reports import body_of, rank_report

from goodput.wire import schema

ONE = schema.in_blocks(rank_report(Process(0, stage=1, flops_per_step=2e12).step(forward=1, samples=4)))


@pytest.mark.parametrize(
    ("part", "field", "wrong", "kept"),
    [
        ("identity", "stage", "first", None), ("identity", "stage", 1.0, 1), ("identity", "stage", -1, None),
        ("identity", "devices", 1.5, 1), ("identity", "devices", 0, 1), ("identity", "device", 7, ""),
        ("identity", "dtype", "x" * 300, ""), ("identity", "flops_per_step", -1.0, None),
        ("identity", "flops_per_step", "1e12", None), ("identity", "gpu_hour_cost", float("nan"), None),
        ("live", "unmeasured", "many", 0), ("live", "loader", {"waits": 1.5}, {}), ("live", "hardware", [1], {}),
        ("live", "drops", {"steps": -1}, {}), ("live", "cost_ns", -5, 0),
    ],
)  # fmt: skip
def test_wrong_option_loses_no_report(part, field, wrong, kept):
    fields = msgspec.msgpack.decode(body_of(ONE, rank_report(Process(1).step(forward=1))))
    fields["ranks"][0][part][field] = wrong
    found = schema.decode(msgspec.msgpack.encode(fields))
    usable = [schema.without_wrong_options(report) for report in found.ranks]
    for report in usable:
        schema.check(report)
    assert getattr(getattr(usable[0], part), field) == kept
    changed = msgspec.structs.replace(getattr(ONE, part), **{field: kept})
    assert usable[0] == msgspec.structs.replace(ONE, **{part: changed})


def test_right_report_is_unchanged():
    assert schema.without_wrong_options(ONE) == ONE


@pytest.mark.parametrize("field", ["rank", "run", "start_ns"])
def test_wrong_key_is_refused(field):
    fields = msgspec.msgpack.decode(body_of(ONE))
    fields["ranks"][0]["identity"][field] = [1]
    (found,) = schema.decode(msgspec.msgpack.encode(fields)).ranks
    with pytest.raises(schema.SchemaError, match=rf"ranks\[0\]\.identity\.{field}"):
        schema.check(found)
