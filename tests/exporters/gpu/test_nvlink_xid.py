"""Sub-codes of NVLink 5's XIDs: NVIDIA's rules by hand, lines of the kernel's log, and the events that they complete."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goodput_exporters.collectors.gpus.nvlink_subcodes import LINE_NS, NvlinkSubcodes
from goodput_exporters.collectors.gpus.xid_counter import XidCounter
from goodput_exporters.events.event_log import format_event
from goodput_exporters.gpu.nvidia.nvlink_xid import parse_line
from goodput_exporters.gpu.nvidia.xid import ACTIONS, SEVERITIES
from goodput_exporters.gpu.sample import Event, Gpu, Sample
from goodput_exporters.system.kernel_log import KernelLog

# (XID, unit, IntrInfo, error status, NVIDIA's severity and action). One of each group of rules in the catalogue, and
# each rule where a group differs within itself.
RULES = [
    *((144, "SAW_MVB", 0x1, status, "Fatal", "RESET_GPU") for status in (0x2, 0x10)),
    *((144, "SAW_MVB", 0x21, status, "Nonfatal", "IGNORE") for status in (0x1, 0x4, 0x8, 0x20)),
    (145, "RLW_CTRL", 0x3, 0x8000_0000, "Nonfatal", "IGNORE"),
    *((145, "RLW_REMAP", 0x4, 1 << bit, "Nonfatal", "XID_154_EVAL") for bit in range(6)),
    *((145, "RLW_REMAP", 0x4, status, "Fatal", "RESET_GPU") for status in (0x40, 0x80)),
    *((145, "RLW_REMAP", 0x4, status, "Nonfatal", "IGNORE") for status in (0x100, 0x200, 0x8000_0000)),
    (145, "RLW_RSPCOL", 0x5, 0x1, "Nonfatal", "IGNORE"),
    (145, "RLW_RSPCOL", 0x5, 0x2, "Fatal", "RESET_GPU"),
    *((145, "RLW_RXPIPE", 0x6, status, "Nonfatal", "IGNORE*") for status in (0x1, 0x2, 0x4)),
    *((145, "RLW_RXPIPE", 0x86, status, "Fatal", "RESET_GPU") for status in (0x1, 0x2, 0x4)),
    (145, "RLW_RXPIPE", 0xC2, 0x1, "Nonfatal", "IGNORE*"),
    (145, "RLW_RXPIPE", 0x4C2, 0x1, "Fatal", "RESET_GPU"),
    (145, "RLW_RXPIPE", 0x86, 0x8, "Nonfatal", "IGNORE"),
    *((145, "RLW_SRC_TRACK", 0x7, status, "Fatal", "RESET_GPU") for status in (0x1, 0x10, 0x20)),
    *((145, "RLW_SRC_TRACK", 0x7, status, "Nonfatal", "XID_154_EVAL") for status in (0x4, 0x8)),
    *((145, "RLW_SRC_TRACK", 0x7, status, "Nonfatal", "IGNORE") for status in (0x2, 0x8000_0000)),
    *((145, "RLW_TAGSTATE", 0x8, status, "Fatal", "RESET_GPU") for status in (0x2, 0x2_0000, 0x10_0000)),
    *((145, "RLW_TAGSTATE", 0x8, status, "Nonfatal", "IGNORE") for status in (0x1, 0x1_0000)),
    *((146, unit, 0x9, 0x4, "Fatal", "RESET_GPU") for unit in ("TLW_CTRL", "TLW_RX", "TLW_TX_PIPE1")),
    *((146, "TLW_RX_PIPE0", 0xA, status, "Nonfatal", "IGNORE") for status in (0x1, 0x2, 0x8000_0000)),
    *((147, "TREX", 0xE, status, "Nonfatal", "IGNORE") for status in (0x1, 0x8000_0000)),
    *((148, unit, 0xF, 0x8000_0000, "Nonfatal", "IGNORE") for unit in ("NVLPW", "NVLPW_CTRL")),
    (149, "NETIR", 0x000F_E406, 0x0, "Fatal", "RESET_GPU"),
    *((149, "NETIR_BER_EVENT", 0x13, status, "Nonfatal", "IGNORE") for status in range(4)),
    *(
        (149, "NETIR_LINK_DOWN", reason << 20 | 0x11, 0x0, "Fatal", "RESET_GPU")
        for reason in (0, 1, 2, 4, 10, 15, 16, 17, 18, 21, 22, 32, 33, 34, 35, 36, 37, 42, 43)
    ),
    *((149, "NETIR_LINK_EVT", reason << 20 | 0x1C6, 0x0, "Fatal", "IGNORE*") for reason in (38, 40)),
    *((149, "NETIR_MFDE_EVENT", 0x14, status, "Fatal", "RESET_GPU") for status in (1, 4, 5, 7)),
    (149, "NETIR_MFDE_EVENT", 0x14, 0x3, "Nonfatal", "IGNORE"),
    (150, "MSE_WATCHDOG", 0x0, 0x0, "Fatal", "RESET_GPU"),
]
MEANS = {
    "RESET_GPU": ("critical", "reset_gpu"),
    "XID_154_EVAL": ("warning", "see_other_xid"),
    "IGNORE": ("info", "watch"),
    # Packets may be lost, or the host has to be looked at.
    "IGNORE*": ("warning", "watch"),
}


def line(number, unit, word, information, status, pci="0000:3b:00", link="07"):
    registers = f"(0x{information:08x} 0x{status:08x} 0x00000000 0x00000000)"
    return f"NVRM: Xid (PCI:{pci}): {number}, {unit} {word} XC0 i0 Link {link} {registers}"


@pytest.mark.parametrize("number, unit, information, status, word, action", RULES)
def test_rules_of_the_catalogue(number, unit, information, status, word, action):
    found = parse_line(line(number, unit, word, information, status))
    assert (found.pci, found.number, found.severity, found.action) == ("0000:3b:00", number, *MEANS[action])
    assert found.severity in SEVERITIES and found.action in ACTIONS
    assert unit in found.text and "link 07" in found.text and f"{status:#x}" in found.text


@pytest.mark.parametrize("word, severity", [("Fatal", "critical"), ("Nonfatal", "warning")])
@pytest.mark.parametrize(
    "unit, information, status",
    [("SAW_MVB", 1, 0x40), ("NEW_UNIT", 1, 1), ("NETIR_LINK_EVT", 63 << 20, 0), ("SAW_MVB", 1 << 20, 2)],
)
def test_error_outside_the_catalogue_is_what_the_line_says(unit, information, status, word, severity):
    found = parse_line(line(149, unit, word, information, status))
    assert (found.severity, found.action) == (severity, "see_other_xid")


def test_lines_as_drivers_write_them():
    text = (
        "NVRM: Xid (PCI:0018:01:00): 145, pid=1818, name=python3, RLW_RXPIPE Nonfatal XC0 i0 Link 13 "
        "(0x0409a0c2 0x00000008 0x00000001 0x00000000 0x00100000 0x00000004)"
    )
    assert parse_line(text)[:4] == ("0018:01:00", 145, "info", "watch")
    text = "NVRM: Xid (PCI:0019:01:00): 149, NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x00000000)"
    assert parse_line(text) == ("0019:01:00", 149, "critical", "reset_gpu", "NETIR, link -1, status 0x0")
    for other in (
        "NVRM: Xid (PCI:0000:5a:00): 79, GPU has fallen off the bus.",
        "NVRM: Xid (PCI:0000:dc:00): 45, pid=18, name=python3, Ch 00000001 caused by previous Xid 149",
        "",
    ):
        assert parse_line(other) is None


@given(st.text() | st.binary().map(lambda data: f"NVRM: Xid (PCI:0000:3b:00): 149, {data!r}"))
def test_any_line_parses(text):
    parse_line(text)


@pytest.fixture
def kernel(tmp_path):
    """kernel(line...) writes to the log; `kernel.log` reads it."""
    path = tmp_path / "kmsg"
    path.write_text(line(149, "NETIR_LINK_EVT", "Fatal", 0x11, 0) + "\n")  # Before the agent began.

    def write(*lines):
        with path.open("a") as file:
            file.writelines(f"6,1234,5678,-;{text}\n" for text in lines)

    write.log = KernelLog(str(path))
    yield write
    write.log.close()


def completed(subcodes, *events):
    return subcodes.complete(
        Sample("nvml", 0, [Gpu("GPU-1", pci="0000:3b:00.0")], events=list(events))
    ).events


def test_event_has_the_worst_sub_code_of_its_lines(kernel):
    now = [0]
    subcodes = NvlinkSubcodes(kernel.log, lambda: now[0])
    event = Event("xid", "GPU-1", 0, 149, "NVLink error (network)", "warning", "to do: see_kernel_log", 3)
    assert completed(subcodes, event) == [event]
    kernel(line(149, "NETIR_BER_EVENT", "Nonfatal", 0x13, 1))
    kernel(line(149, "NETIR_LINK_EVT", "Fatal", 0x11, 0, pci="0000:5a:00"))
    (mild,) = completed(subcodes, event)
    assert (mild.severity, mild.text) == (
        "info",
        "to do: watch, 3 times, NETIR_BER_EVENT, link 07, status 0x1",
    )
    kernel(line(149, "NETIR_LINK_EVT", "Fatal", 0x4001C6, 0), line(145, "RLW_REMAP", "Nonfatal", 4, 1))
    (worst,) = completed(subcodes, event)
    assert worst.severity == "critical" and worst.text.endswith(
        "NETIR_LINK_EVT, link 07, status 0x0, reason 4"
    )
    assert "reset the GPU" in format_event(worst, [])
    # Lines of a minute ago are of another event.
    now[0] = LINE_NS + 1
    assert completed(subcodes, event) == [event]
    other = Event("xid", "GPU-1", 0, 79)
    assert completed(subcodes, other) == [other]


def test_fatal_sub_codes_are_counted_apart():
    counter = XidCounter()
    events = [
        Event("xid", "GPU-1", 0, 149, severity=severity) for severity in ("critical", "warning", "info")
    ]
    counter.add_sample(
        Sample("nvml", 0, [], events=[*events, Event("xid", "GPU-1", 0, 150, severity="critical")])
    )
    assert counter.counts({"GPU-1"}) == {("149", "link_fatal"): 1, ("149", "link"): 2, ("150", "link"): 1}


def test_log_without_permission_or_file_is_a_problem(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    assert "No such file" in KernelLog(str(tmp_path / "none")).problem
    monkeypatch.setattr(os, "open", refuse)
    log = KernelLog("/dev/kmsg")
    assert log.problem == "/dev/kmsg: Operation not permitted" and log.poll() == []
