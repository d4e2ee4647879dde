"""dcgm-exporter's list of counters: its own files' forms, what is wrong and where, fields that are read as they are."""

import os

import pytest

from goodput_exporters.collector import Settings
from goodput_exporters.collectors.gpus.collector import Gpus
from goodput_exporters.gpu.dcgm_endpoint.driver import DcgmEndpoint
from goodput_exporters.gpu.dcgm_endpoint.page import parse_page
from goodput_exporters.gpu.drivers import Options
from goodput_exporters.gpu.nvidia.counters_file import (
    COUNTERS_MAX,
    Counter,
    further_fields,
    parse_counters,
    read_counters,
)

# With the oddities of the exporter's own files: spaces before a comma, commas after comments, a help in quotes.
FILE = """\
# Format,,
# DCGM FIELD, Prometheus metric type, help message

# Clocks,,
DCGM_FI_DEV_SM_CLOCK,  gauge, SM clock frequency (in MHz).
DCGM_FI_DEV_DEC_UTIL ,     gauge, Decoder utilization (in %).
  # DCGM_FI_DEV_POWER_VIOLATION,       counter, Throttling duration due to power constraints (in us).
DCGM_FI_DEV_VIRTUAL_MODE, gauge, "Mode, one of five"
DCGM_FI_DRIVER_VERSION,        label, Driver Version
DCGM_FI_DEV_PCIE_TX_THROUGHPUT,  counter, Total number of bytes transmitted through PCIe TX (in KB) via NVML.
DCGM_EXP_XID_ERRORS_COUNT, gauge, XIDs in a window
"""
A = "GPU-aaaaaaaa-0000-1111-2222-333333333333"


def test_forms_of_the_exporters_own_files(tmp_path):
    (tmp_path / "counters.csv").write_bytes(FILE.replace("\n", "\r\n").encode("utf-8-sig"))
    counters = read_counters(str(tmp_path / "counters.csv"))
    assert counters == (
        Counter("DCGM_FI_DEV_SM_CLOCK", "gauge", "SM clock frequency (in MHz)."),
        Counter("DCGM_FI_DEV_DEC_UTIL", "gauge", "Decoder utilization (in %)."),
        Counter("DCGM_FI_DEV_VIRTUAL_MODE", "gauge", "Mode, one of five"),
        Counter("DCGM_FI_DRIVER_VERSION", "label", "Driver Version"),
        Counter(
            "DCGM_FI_DEV_PCIE_TX_THROUGHPUT",
            "counter",
            "Total number of bytes transmitted through PCIe TX (in KB) via NVML.",
        ),
        Counter("DCGM_EXP_XID_ERRORS_COUNT", "gauge", "XIDs in a window"),
    )
    assert further_fields(counters) == ("DCGM_FI_DEV_VIRTUAL_MODE", "DCGM_FI_DEV_PCIE_TX_THROUGHPUT")


@pytest.mark.parametrize(
    "line, why",
    [
        ("DCGM_FI_DEV_GPU_TEMP, gauge", "2 columns"),
        ("DCGM_FI_DEV_GPU_TEMP, gauge, a, b", "4 columns"),
        ("GPU_TEMP, gauge, a", "no name of a field"),
        ("DCGM_FI_DEV_x, gauge, a", "no name of a field"),
        ("DCGM_FI_DEV_GPU_TEMP, guage, a", "type 'guage'"),
        ("DCGM_FI_DEV_SM_CLOCK, gauge, again", "twice"),
        ("DCGM_FI_DEV_GPU_TEMP, gauge, a\rDCGM_FI_DEV_POWER_USAGE, gauge, b", "new-line character"),
        (f"DCGM_FI_DEV_GPU_TEMP, gauge, {'x' * (1 << 17)}x", "field limit"),
    ],
)
def test_error_says_what_and_where(line, why):
    with pytest.raises(ValueError, match=r"c\.csv:12: ") as raised:
        parse_counters(FILE + line, "c.csv")
    assert why in str(raised.value)


def test_bounds(tmp_path):
    lines = "".join(f"DCGM_FI_DEV_X{at}, gauge, x\n" for at in range(COUNTERS_MAX + 1))
    with pytest.raises(ValueError, match="more than 512 counters"):
        parse_counters(lines)
    (tmp_path / "big.csv").write_bytes(b"#" * (1 << 20) + b"#")
    with pytest.raises(ValueError, match="more than 1048576 bytes"):
        read_counters(str(tmp_path / "big.csv"))
    with pytest.raises(ValueError, match="No such file"):
        read_counters(str(tmp_path / "none.csv"))


def test_what_holds_no_counters_is_an_error(tmp_path):
    """A file cut to nothing does not mean the usual counters, and a FIFO is not waited for."""
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(ValueError, match=r"pipe\.csv: no regular file"):
        read_counters(str(tmp_path / "pipe.csv"))
    for text in "", "\n# DCGM_FI_DEV_GPU_TEMP, gauge, x\n":
        (tmp_path / "empty.csv").write_text(text)
        with pytest.raises(ValueError, match=r"empty\.csv: no counter in it"):
            read_counters(str(tmp_path / "empty.csv"))


def test_further_fields_of_a_page_are_read_as_they_are():
    page = "".join(
        f'{name}{{gpu="0",UUID="{A}"}} {value}\n'
        for name, value in (
            ("DCGM_FI_DEV_VIRTUAL_MODE", "2"), ("DCGM_FI_DEV_GPU_TEMP", "54"), ("DCGM_FI_DEV_OTHER", "9"),
            ("DCGM_FI_DEV_BLANK", "9223372036854775794"),
        )
    )  # fmt: skip
    parsed = parse_page(page, frozenset({"DCGM_FI_DEV_VIRTUAL_MODE", "DCGM_FI_DEV_BLANK"}))
    (device,) = parsed.devices.values()
    readings = DcgmEndpoint(Options(dcgm_endpoint="http://x/"))._gpu(device).readings
    assert readings == {"temperature/core": 54.0, "dcgm_field/DCGM_FI_DEV_VIRTUAL_MODE": 2}


def test_setting_reaches_the_drivers_and_the_page(tmp_path):
    (tmp_path / "counters.csv").write_text(FILE)
    gpus = Gpus(Settings(str(tmp_path), dcgm_fields=str(tmp_path / "counters.csv")))
    supervisor = gpus._supervisor("dcgm", "module:Class")
    names = '"dcgm_fields":["DCGM_FI_DEV_VIRTUAL_MODE","DCGM_FI_DEV_PCIE_TX_THROUGHPUT"]'
    assert names in " ".join(map(str, supervisor._command))
    assert gpus.dcgm_families("n0") == []
    with pytest.raises(ValueError, match="No such file"):
        Gpus(Settings(str(tmp_path), dcgm_fields=str(tmp_path / "none.csv")))
