"""The documented table of refused pushes has every reason, with the status that it is answered with."""

from __future__ import annotations

import re
from pathlib import Path

from goodput.access.responses import STATUSES
from goodput.aggregator.http.request_metrics import FAILURES, REFUSALS
from goodput.wire.schema import REJECTED_FOR
from goodput_exporters.push.pusher import UNUSABLE_STATUS

TABLE = Path(__file__).parents[3] / "docs" / "operations.md"
COUNTERS = {
    "goodput_aggregator_auth_failures_total": {*FAILURES, "scope"} - {"session"},
    # Pages of browsers alone are refused for the others.
    "goodput_aggregator_requests_refused_total": {*REFUSALS} - {"origin", "sessions"},
    "goodput_aggregator_rank_rejections_total": {*REJECTED_FOR},
}


def rows() -> list[tuple[str, list[str], str, str]]:
    """Counter, reasons, status and what becomes of the data."""
    table = TABLE.read_text().partition("## Why a push is refused")[2]
    found, counter = [], ""
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| ") and cells[0] != "counter of the aggregator":
            counter = cells[0].strip("`") or counter
            found.append((counter, re.findall(r"`([^`]+)`", cells[1]), cells[2], cells[4]))
    return found


def test_table_lists_every_reason_once_with_its_status():
    listed = {counter: [] for counter in COUNTERS}
    for counter, reasons, status, _ in rows():
        if counter not in COUNTERS:
            continue
        listed[counter] += reasons
        if counter.endswith("requests_refused_total") and status != "none":
            # What is no HTTP is answered by uvicorn.
            assert {STATUSES.get(reason, 400) for reason in reasons} == {int(status)}, reasons
        if counter.endswith("auth_failures_total"):
            assert {STATUSES.get(reason, 401) for reason in reasons} == {int(status)}, reasons
    for counter, reasons in COUNTERS.items():
        assert sorted(listed[counter]) == sorted(reasons), counter


def test_table_says_what_the_agent_does_with_the_data():
    for _, reasons, status, data in rows():
        if status.isdigit() and status != "200":
            assert data.startswith("divided" if int(status) in UNUSABLE_STATUS else "kept"), reasons
