"""Lines of a dcgm-exporter's page that are of no whole GPU: its links, NVSwitches with theirs, NVIDIA's CPUs; in the
forms of two of its versions."""

import pytest

from goodput.metrics import Families
from goodput_exporters.collectors.gpus.series import add_component
from goodput_exporters.gpu.dcgm_endpoint.driver import DcgmEndpoint
from goodput_exporters.gpu.dcgm_endpoint.page import parse_page
from goodput_exporters.gpu.drivers import Options
from goodput_exporters.gpu.merge import merge, merge_components
from goodput_exporters.gpu.nvidia import dcgm_components
from goodput_exporters.gpu.sample import (
    COMPONENTS_MAX,
    Component,
    Gpu,
    Sample,
    SampleError,
    check,
    component_series_of,
    decode,
    encode,
    valid_part,
)
from goodput_exporters.gpu.supervisor import DriverStatus, Received

A = "GPU-aaaaaaaa-0000-1111-2222-333333333333"
GPU = (
    f'gpu="0",UUID="{A}",pci_bus_id="00000000:1B:00.0",device="nvidia0",modelName="NVIDIA H100",Hostname="n0"'
)
# As dcgm-exporter 3 writes it: a field for each link of a GPU, lines of the links of NVSwitches.
OLD = f"""\
DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL{{{GPU}}} 7
DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L0{{{GPU}}} 3
DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L11{{{GPU}}} 4
DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_L17{{{GPU}}} 5
DCGM_FI_PROF_NVLINK_L2_TX_BYTES{{{GPU}}} 1000
DCGM_FI_DEV_NVSWITCH_TEMPERATURE_CURRENT{{nvswitch="0",Hostname="n0"}} 44
DCGM_FI_DEV_NVSWITCH_FATAL_ERRORS{{nvswitch="0",Hostname="n0"}} 12028
DCGM_FI_DEV_NVSWITCH_LINK_STATUS{{nvlink="3",nvswitch="nvswitch0",Hostname="n0"}} 2
DCGM_FI_DEV_NVSWITCH_LINK_STATUS{{nvlink="4",nvswitch="nvswitch0",Hostname="n0"}} 3
DCGM_FI_DEV_NVSWITCH_LINK_STATUS{{nvlink="5",nvswitch="nvswitch0",Hostname="n0"}} -1
DCGM_FI_DEV_NVSWITCH_LINK_CRC_ERRORS{{nvlink="3",nvswitch="nvswitch0",Hostname="n0"}} 9
DCGM_FI_DEV_CPU_UTIL_TOTAL{{cpu="0",Hostname="n0"}} 0.250000
DCGM_FI_DEV_CPU_UTIL_TOTAL{{cpucore="12",cpu="0",Hostname="n0"}} 0.990000
DCGM_FI_DEV_CPU_POWER_UTIL_CURRENT{{cpu="0",Hostname="n0"}} 81.500000
"""
LINK = 'gpu="0",gpu_uuid="{0}",pci_bus_id="00000000:1B:00.0",device="nvidia0",model_name="NVIDIA B200",hostname="n0"'
LINK = LINK.format(A)
# As dcgm-exporter 4.6 on NVLink 5: the names of that version, lines of the links of GPUs.
NEW = f"""\
DCGM_FI_DEV_NVLINK_RX_ERROR_TOTAL{{{LINK}}} 30
DCGM_FI_DEV_NVLINK_RX_ERROR_TOTAL{{nvlink="0",{LINK}}} 10
DCGM_FI_DEV_NVLINK_RX_ERROR_TOTAL{{nvlink="17",{LINK}}} 20
DCGM_FI_DEV_NVLINK_TX_BYTES_TOTAL{{nvlink="0",{LINK}}} 4096
DCGM_FI_DEV_NVLINK_SYMBOL_BER_RATIO{{nvlink="0",{LINK}}} 0.000001
DCGM_FI_DEV_NVLINK_RECOVERY_FAILED_TOTAL{{nvlink="17",{LINK}}} 1
DCGM_FI_DEV_NVSWITCH_TEMP_CELSIUS{{nvswitch="0",hostname="n0"}} 45
DCGM_FI_DEV_NVSWITCH_LINK_CRC_ERROR_TOTAL{{nvlink="3",nvswitch="nvswitch0",hostname="n0"}} 2
DCGM_FI_DEV_CPU_UTIL_RATIO{{cpu="1",hostname="n0"}} 0.500000
DCGM_FI_DEV_CPU_TEMP_CELSIUS{{cpu="1",hostname="n0"}} 51.000000
"""


def read(page):
    parsed = parse_page(page)
    made = DcgmEndpoint(Options(dcgm_endpoint="http://x/"))
    (gpu,) = (made._gpu(device) for device in parsed.devices.values())
    return gpu.readings, parsed


def test_fields_by_link_of_the_old_version():
    readings, parsed = read(OLD)
    assert parsed.problems == []
    assert readings == {
        "nvlink_errors/crc_flit": 7.0,
        "nvlink_link_errors/0/crc_flit": 3.0,
        "nvlink_link_errors/11/crc_flit": 4.0,
        "nvlink_link_errors/17/replay": 5.0,
        "nvlink_link_rate/2/transmit": 1000.0,
    }
    assert parsed.components == {
        ("nvswitch", "nvswitch0"): {
            "temperature": 44.0, "sxid/fatal": 12028.0, "link_up/3": 1.0, "link_up/4": 0.0, "link_errors/3/crc": 9.0,
        },
        ("cpu", "0"): {"activity/total": 0.25, "power/cpu": 81.5},
    }  # fmt: skip


def test_lines_of_links_of_the_new_version():
    """Those of a link are no values of the GPU, whose own lines are the sums."""
    readings, parsed = read(NEW)
    assert parsed.problems == []
    assert readings == {
        "nvlink_errors/receive": 30.0,
        "nvlink_link_errors/0/receive": 10.0,
        "nvlink_link_errors/17/receive": 20.0,
        "nvlink_link_errors/17/recovery_failed": 1.0,
        "nvlink_link_bytes/0/transmit": 4096.0,
    }
    assert parsed.components == {
        ("nvswitch", "nvswitch0"): {"temperature": 45.0, "link_errors/3/crc": 2.0},
        ("cpu", "1"): {"activity/total": 0.5, "temperature": 51.0},
    }


def test_a_gpu_with_lines_of_links_alone_has_no_sums():
    readings, _ = read(
        "".join(line + "\n" for line in NEW.splitlines() if 'nvlink="' in line and "gpu_uuid" in line)
    )
    assert not [key for key in readings if key.startswith(("nvlink_errors/", "link_bytes/"))]


@pytest.mark.parametrize("link", ["x", "-1", "٣", "1234"])
def test_malformed_link_costs_its_line(link):
    readings, parsed = read(f'{NEW}DCGM_FI_DEV_NVLINK_TX_BYTES_TOTAL{{nvlink="{link}",{LINK}}} 1\n')
    assert len(parsed.problems) == 1 and "nvlink is" in parsed.problems[0] and len(readings) == 5


def test_components_are_bounded_and_blanks_absent():
    lines = [f'DCGM_FI_DEV_NVSWITCH_TEMP_CELSIUS{{nvswitch="{at}"}} 40' for at in range(COMPONENTS_MAX + 2)]
    parsed = parse_page("\n".join(lines))
    assert len(parsed.components) == COMPONENTS_MAX and len(parsed.problems) == 2
    blank = 'DCGM_FI_DEV_NVSWITCH_TEMP_CELSIUS{nvswitch="0"} 9223372036854775794'
    assert parse_page(blank).components == {("nvswitch", "nvswitch0"): {}}
    assert parse_page('DCGM_FI_DEV_CPU_UTIL_TOTAL{cpu="0"} 1.5').components == {("cpu", "0"): {}}


def test_every_field_of_a_component_has_a_series():
    numbers = [field.number for field in dcgm_components.TABLE]
    names = [name for field in dcgm_components.TABLE for name in field.names]
    assert len(set(numbers)) == len(numbers) and len(set(names)) == len(names)
    for field in dcgm_components.TABLE:
        raw = 0.5 if field.double else 2
        ((key, _),) = dcgm_components.reading_of(field, raw, "7").items()
        component_series_of(field.kind, key)
        if "{link}" in field.key:
            assert dcgm_components.reading_of(field, raw) == {}


def test_sample_with_components_is_checked():
    good = Component("nvswitch", "0", {"temperature": 45.0})
    sample = Sample("dcgm_endpoint", 0, [], components=[good])
    assert decode(encode(sample)) == sample
    bad = Sample(
        "x",
        0,
        [],
        components=[good, Component("fan", "0"), Component("cpu", "0", {"temperature": 1.0, "x/y": 2.0})],
    )
    with pytest.raises(SampleError, match="unknown kind"):
        check(bad)
    assert valid_part(bad).components == [good, Component("cpu", "0", {"temperature": 1.0})]
    many = Sample("x", 0, [], components=[good] * (COMPONENTS_MAX + 1))
    assert len(valid_part(many).components) == COMPONENTS_MAX


def test_reading_of_one_kind_is_unknown_for_others():
    """Also once it was accepted; and a value that is out of range after one that was not."""
    switch, cpu = ("nvswitch", {"reset_required": 0.0}), ("cpu", {"activity/user": 0.5})
    for (kind, readings), (other, _) in ((switch, cpu), (cpu, switch)):
        good = Sample("x", 0, [], components=[Component(kind, "0", readings)])
        assert valid_part(good) is good
        for bad in (Component(other, "0", readings), Component(kind, "0", dict.fromkeys(readings, 10**400))):
            sample = Sample("x", 0, [], components=[bad])
            assert valid_part(sample).components == [Component(bad.kind, "0")]
    assert valid_part(Sample("x", 0, [Gpu("GPU-1", readings=switch[1])])).gpus == [Gpu("GPU-1")]


def test_components_of_two_drivers_become_series():
    def status(name, **readings):
        sample = Sample(name, 0, [], components=[Component("nvswitch", "0", readings)])
        return DriverStatus(name, 5.0, full=Received(sample, 0), up=True)

    statuses = [
        status("dcgm_endpoint", temperature=50.0, reset_required=0.0),
        status("dcgm", temperature=45.0),
    ]
    found = merge_components(statuses, 1)
    assert found == {("nvswitch", "0"): {"temperature": 45.0, "reset_required": 0.0}}
    families = Families("node")
    for (kind, name), readings in found.items():
        add_component(families, kind, name, {**readings, "link_errors/3/crc": 2.0})
    assert families.rows == {
        "goodput_nvswitch_temperature_celsius": [(("0",), 45.0)],
        "goodput_nvswitch_reset_required": [(("0",), 0.0)],
        "goodput_nvswitch_link_errors_total": [(("0", "3", "crc"), 2.0)],
    }
    # A driver that is silent has none.
    assert merge_components(statuses, 60 * 10**9) == {}


def test_state_of_two_drivers_is_the_first_ones():
    """A GPU has one state of the fabric, also while a driver has not seen a change yet."""

    def status(name, **readings):
        sample = Sample(
            name, 0, [Gpu(A, readings={key.replace("__", "/"): value for key, value in readings.items()})]
        )
        return DriverStatus(name, 5.0, full=Received(sample, 0), up=True)

    (merged,) = merge(
        [
            status("dcgm", fabric__completed=1.0, power=1.0),
            status("nvml", fabric__in_progress=1.0, fabric_problem__route_recovery=1.0, recovery__none=1.0),
            status("dcgm_endpoint", recovery__gpu_reset=1.0),
        ],
        1,
    )
    assert merged.readings == {
        "fabric/completed": 1.0, "power": 1.0, "fabric_problem/route_recovery": 1.0, "recovery/none": 1.0,
    }  # fmt: skip
