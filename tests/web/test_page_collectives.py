"""Communication by process group and operation on the built-in page."""

from __future__ import annotations

import time

import pytest
from msgspec.structs import replace
from support.aggregator.page_server import SECOND, aggregator, attempt_reports, document, push, serving
from support.browser import dom_of, needs_chromium, open_page, until

from goodput.wire.collectives import ReportedOperation

ROWS = (
    ReportedOperation(
        "mesh_dp", "reduce_scatter", 600, 3 * 10**9, SECOND, 0, 0, 8, SECOND, 2 * SECOND, 4, 50 * 10**9
    ),
    ReportedOperation("a group with a long name <b>", "all_reduce", 20, 160, SECOND // 4, 0),
)
# Over NCCL, with what its plugin has measured of one of them; by the host's clock there is nothing to divide.
ON_DEVICE = (
    ReportedOperation(
        "dp", "all_reduce", 20, 10**9, SECOND // 4, 0, 0, 2, queued=1, device_ns=SECOND, device_bytes=10**9
    ),
    ReportedOperation("dp", "all_gather", 20, 160, 0, 0, queued=1),
)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    now_ns = time.time_ns()
    with serving(aggregator(tmp_path_factory.mktemp("ledger"))) as url:
        for run, rows in (("sharded", ROWS), ("plain", None)):
            reports = attempt_reports(run, 1, now_ns - 100 * SECOND, range(20), ranks=2, ended="finished")
            push(url, [replace(one, live=replace(one.live, operations=rows)) for one in reports])
        reports = attempt_reports("queued", 1, now_ns - 100 * SECOND, range(20), ranks=2, ended="finished")
        push(url, [replace(one, live=replace(one.live, operations=ON_DEVICE)) for one in reports])
        reports = attempt_reports("staged", 1, now_ns - 100 * SECOND, range(20), ranks=2, ended="finished")
        push(url, [of_stage(one, one.identity.rank) for one in reports])
        yield url


def of_stage(report, stage: int):
    """The report of a pipeline's rank: stage 0 sends and stage 1 receives, in 20 steps of 4 microbatches."""
    name, ns = ("send", SECOND // 5) if stage == 0 else ("recv", SECOND)
    rows = (ReportedOperation("pp", name, 80, 10**6, ns, 0, 0, 2),)
    identity = replace(report.identity, stage=stage, microbatches=4)
    return replace(report, identity=identity, live=replace(report.live, operations=rows))


@needs_chromium
def test_rows_sum_to_the_states(browser, served):
    run = document(served, "sharded")
    waited = sum(run["states"][state] for state in ("communication", "straggler", "bubble"))
    assert sum(row["gpu_seconds"] for row in run["collectives"]) == pytest.approx(waited)
    rows = dom_of(browser, f"{served}/#run=sharded").table("collective-rows")
    assert [row[:2] for row in rows] == [
        ["mesh_dp", "reduce_scatter"],
        ["a group with a long name <b>", "all_reduce"],
        ["", "not recorded"],
    ]
    assert rows[0][4:] == [
        "0.0 % to 13.8 %",
        "2.00 to 4.00",
        "2",
        "1,200",
        "6 GB",
        "≤ 21 GB/s, 42.0 % of link",
    ]
    assert rows[2][5:] == ["", "", "", "", ""]
    assert sum(float(row[2]) for row in rows) == pytest.approx(waited, abs=0.02)
    assert sum(float(row[3].rstrip(" %")) for row in rows) == pytest.approx(100, abs=0.2)


@needs_chromium
def test_time_that_nobody_measured_is_not_known(browser, served):
    dom = dom_of(browser, f"{served}/#run=queued")
    rows = {row[1]: row for row in dom.table("collective-rows")}
    assert rows["all_gather"][2:4] == ["not known", ""] and rows["all_reduce"][-1] == "≥ 1 GB/s"
    assert "goodput run" in dom.text("collectives-note")


@needs_chromium
def test_table_fits_a_small_window(browser, served):
    page = open_page(browser, f"{served}/#run=sharded", width=1100)
    until(page, "document.querySelectorAll('#collective-rows tr').length > 0")
    assert page.evaluate("document.documentElement.scrollWidth") <= 1100


@needs_chromium
def test_without_records_there_is_no_table(browser, served):
    dom = dom_of(browser, f"{served}/#run=plain")
    assert dom.table("collective-rows") == [] == dom.table("stage-wait-rows")


@needs_chromium
def test_waits_of_stages_are_listed(browser, served):
    rows = dom_of(browser, f"{served}/#run=staged").table("stage-wait-rows")
    assert rows == [["stage 0", "", "", "10 ms", "3 ms"], ["stage 1", "50 ms", "13 ms", "", ""]]
