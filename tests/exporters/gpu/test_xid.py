"""XIDs: a table that is well formed, and the errors that matter most for a training run, by hand."""

import pytest

from goodput_exporters.events.event_log import format_event
from goodput_exporters.gpu.nvidia.xid import (
    ACTIONS,
    CATALOGUE_DATE,
    CATALOGUE_END,
    KINDS,
    SEVERITIES,
    UNKNOWN,
    XIDS,
    lookup,
)
from goodput_exporters.gpu.sample import Event

# NVIDIA's catalogue names an immediate action for each of these: RESET_GPU, or a restart of the machine for 79.
RESET = (46, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 158)
RESTART_APP = (8, 11, 13, 25, 31, 32, 69, 80, 94)


@pytest.mark.parametrize("xid", XIDS.values(), ids=lambda xid: str(xid.number))
def test_every_entry_is_valid(xid):
    assert XIDS[xid.number] is xid
    assert xid.kind in KINDS and xid.severity in SEVERITIES and xid.action in ACTIONS
    assert 0 < len(xid.name) <= 48 and "/" not in xid.kind
    # What needs no action is no warning, and the reverse: an operator reads one or the other.
    assert (xid.action == "none") <= (xid.severity == "info")
    assert (xid.action in ("reset_gpu", "reboot_node")) <= (xid.severity != "info")


def test_numbers_are_in_the_catalogue():
    assert set(XIDS) <= set(range(1, 173))
    assert len(XIDS) >= 115


def test_catalogue_reset_actions_match():
    assert {lookup(number).action for number in RESET} == {"reset_gpu"}
    assert {lookup(number).severity for number in RESET} == {"critical"}
    assert {lookup(number).action for number in RESTART_APP} == {"restart_app"}
    assert {lookup(number).severity for number in RESTART_APP} == {"warning"}


@pytest.mark.parametrize(
    "number, kind, severity, action",
    [
        (13, "application", "warning", "restart_app"),
        (31, "application", "warning", "restart_app"),
        (43, "application", "warning", "restart_app"),
        (45, "application", "warning", "see_other_xid"),
        (48, "memory", "critical", "reset_gpu"),
        (63, "memory", "info", "watch"),
        (74, "link", "critical", "check_link"),
        (79, "bus", "critical", "reboot_node"),
        (92, "memory", "warning", "watch"),
        (94, "memory", "warning", "restart_app"),
        (119, "firmware", "critical", "reset_gpu"),
        (137, "link", "warning", "see_other_xid"),
        (145, "link", "warning", "see_kernel_log"),
        (147, "link", "info", "watch"),
        (148, "link", "info", "watch"),
        (150, "link", "critical", "reset_gpu"),
        (151, "driver", "critical", "restart_vm"),
        (157, "memory", "info", "watch"),
        (161, "memory", "info", "watch"),
        (126, "gpu", "warning", "restart_app"),
        (105, "video", "warning", "restart_app"),
    ],
)
def test_the_errors_that_matter(number, kind, severity, action):
    xid = lookup(number)
    assert (xid.kind, xid.severity, xid.action) == (kind, severity, action)


@pytest.mark.parametrize("number", [-1, 0, 1, 173, 185, 999, 1 << 63])
def test_unknown_xid_is_a_warning(number):
    xid = lookup(number)
    assert (xid.number, xid.kind, xid.severity) == (number, "unknown", "warning")
    assert format_event(Event("xid", "GPU-1", 0, number, xid.name, xid.severity), []) == (
        f"1970-01-01T00:00:00Z warning: xid{f' {number}' if number else ''} on GPU-1: "
        "not in NVIDIA's catalogue of October 2025; the kernel's log has the driver's text of it; affects no rank"
    )


def test_table_ends_where_the_catalogue_does():
    assert max(XIDS) == CATALOGUE_END and CATALOGUE_DATE in UNKNOWN
