"""DCGM: every field's reading worked by hand, blank values, and the numbers of fields by place and by link."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.node.dcgm.by_hand import BY_HAND

from goodput_exporters.gpu import sample as gpu_sample
from goodput_exporters.gpu.nvidia import dcgm_field_table as table
from goodput_exporters.gpu.nvidia import dcgm_fields as fields
from goodput_exporters.gpu.nvidia.dcgm_fields import FIELDS, readings_of

# Those without a reading of their own: bits, events, totals of cycles.
OTHERS = {112, 174, 230, 1084, 1085}
# As dcgm_fields.h has them: the first and last links of each range of numbers, and errors by place.
LINES = [
    "NVLINK_CRC_FLIT_ERROR_COUNT_L0",
    "400",
    "NVLINK_CRC_FLIT_ERROR_COUNT_L5",
    "405",
    "NVLINK_CRC_FLIT_ERROR_COUNT_L6",
    "451",
    "NVLINK_CRC_FLIT_ERROR_COUNT_L11",
    "456",
    "NVLINK_CRC_FLIT_ERROR_COUNT_L12",
    "406",
    "NVLINK_CRC_FLIT_ERROR_COUNT_L14",
    "408",
    "NVLINK_CRC_FLIT_ERROR_COUNT_L15",
    "481",
    "NVLINK_CRC_FLIT_ERROR_COUNT_L17",
    "483",
    "NVLINK_CRC_DATA_ERROR_COUNT_L0",
    "410",
    "NVLINK_CRC_DATA_ERROR_COUNT_L11",
    "462",
    "NVLINK_CRC_DATA_ERROR_COUNT_L12",
    "416",
    "NVLINK_CRC_DATA_ERROR_COUNT_L17",
    "486",
    "NVLINK_REPLAY_ERROR_COUNT_L5",
    "425",
    "NVLINK_REPLAY_ERROR_COUNT_L6",
    "463",
    "NVLINK_REPLAY_ERROR_COUNT_L14",
    "428",
    "NVLINK_REPLAY_ERROR_COUNT_L15",
    "487",
    "NVLINK_RECOVERY_ERROR_COUNT_L0",
    "430",
    "NVLINK_RECOVERY_ERROR_COUNT_L11",
    "474",
    "NVLINK_RECOVERY_ERROR_COUNT_L12",
    "436",
    "NVLINK_RECOVERY_ERROR_COUNT_L15",
    "491",
    "NVLINK_RECOVERY_ERROR_COUNT_L17",
    "493",
    "NVLINK_TX_BANDWIDTH_L0",
    "825",
    "NVLINK_TX_BANDWIDTH_L17",
    "842",
    "NVLINK_RX_BANDWIDTH_L0",
    "879",
    "NVLINK_RX_BANDWIDTH_L17",
    "896",
    "ECC_SBE_VOL_L1",
    "314",
    "ECC_DBE_VOL_L1",
    "315",
    "ECC_SBE_VOL_L2",
    "316",
    "ECC_DBE_VOL_L2",
    "317",
    "ECC_SBE_VOL_DEV",
    "318",
    "ECC_DBE_VOL_DEV",
    "319",
    "ECC_SBE_VOL_REG",
    "320",
    "ECC_DBE_VOL_REG",
    "321",
    "ECC_SBE_VOL_TEX",
    "322",
    "ECC_DBE_VOL_TEX",
    "323",
    "ECC_SBE_AGG_L1",
    "324",
    "ECC_DBE_AGG_L1",
    "325",
    "ECC_SBE_AGG_L2",
    "326",
    "ECC_DBE_AGG_L2",
    "327",
    "ECC_SBE_AGG_DEV",
    "328",
    "ECC_DBE_AGG_DEV",
    "329",
    "ECC_SBE_AGG_REG",
    "330",
    "ECC_DBE_AGG_REG",
    "331",
    "ECC_SBE_AGG_TEX",
    "332",
    "ECC_DBE_AGG_TEX",
    "333",
    "ECC_SBE_VOL_SHM",
    "334",
    "ECC_DBE_VOL_SHM",
    "335",
    "ECC_SBE_VOL_CBU",
    "336",
    "ECC_DBE_VOL_CBU",
    "337",
    "ECC_SBE_AGG_SHM",
    "338",
    "ECC_DBE_AGG_SHM",
    "339",
    "ECC_SBE_AGG_CBU",
    "340",
    "ECC_DBE_AGG_CBU",
    "341",
    "ECC_SBE_VOL_SRM",
    "342",
    "ECC_DBE_VOL_SRM",
    "343",
    "ECC_SBE_AGG_SRM",
    "344",
    "ECC_DBE_AGG_SRM",
    "345",
]
PLACES_AND_LINKS = {*range(314, 346), *table.UNWATCHED} - {200, 201}
PLACES_AND_LINKS |= {*range(400, 409), *range(410, 419), *range(420, 429), *range(430, 439), *range(451, 475)}
PLACES_AND_LINKS |= {*range(481, 490), *range(491, 494)}


def test_every_field_by_hand():
    assert set(BY_HAND) | OTHERS | PLACES_AND_LINKS == set(FIELDS)
    assert not set(BY_HAND) & PLACES_AND_LINKS


def test_numbers_of_places_and_links():
    found = {FIELDS[number].names[0].removeprefix("DCGM_FI_DEV_"): number for number in PLACES_AND_LINKS}
    expected = dict(zip(LINES[::2], map(int, LINES[1::2]), strict=True))
    assert {name: found[name] for name in expected} == expected
    # Kinds, scopes and links are in the names.
    for number in PLACES_AND_LINKS:
        family, *parts = FIELDS[number].key.split("/")
        name = FIELDS[number].names[0]
        if family == "ecc_location":
            assert ("_SBE_" in name, "_VOL_" in name) == (parts[0] == "correctable", parts[1] == "volatile")
        else:
            assert re.search(rf"_L{parts[0]}(_|$)", name), name
            way = (
                parts[1] if family == "nvlink_link_errors" else {"transmit": "TX", "receive": "RX"}[parts[1]]
            )
            assert f"_{way.upper()}_" in name, name
    assert readings_of({316: 3, 1041: 4000, 896: 5}) == {
        "ecc_location/correctable/volatile/l2": 3.0, "nvlink_link_rate/0/receive": 4000.0, "nvlink_link_rate/17/receive": 5_120_000.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    "status, state",
    list(enumerate(["not_supported", "not_started", "in_progress", "completed", "failed", "unknown"])),
)
def test_fabric_states(status, state):
    assert readings_of({170: status}) == {f"fabric/{state}": 1.0}


def test_fabric_problems_are_bits():
    # Degraded bandwidth is false, a route is unhealthy, the configuration is wrong; the rest is not known.
    assert readings_of({174: 0b0011_00_01_00_10}) == {
        "fabric_problem/degraded_bandwidth": 0.0, "fabric_problem/route_unhealthy": 1.0, "fabric_problem/misconfigured": 1.0,
    }  # fmt: skip
    assert readings_of({174: 0}) == {}


def test_unknown_performance_state_is_absent():
    assert readings_of({190: 32}) == {} and readings_of({190: 15}) == {"performance_state": 15.0}


@pytest.mark.parametrize("number", BY_HAND)
def test_a_field_in_base_units(number):
    raw, key, value = BY_HAND[number]
    assert readings_of({number: raw}) == {key: value}
    gpu_sample.series_of(key)


@pytest.mark.parametrize("number", BY_HAND)
def test_zero_is_a_value_and_missing_is_none(number):
    zero = readings_of({number: 0.0 if FIELDS[number].double else 0})
    # Where the memory has no sensor, its temperature is 0.
    assert list(zero.values()) == ([1.0] if number in (170, 1523) else [] if number == 140 else [0.0])
    blanks = [
        None,
        "<<<NULL>>>",
        "<<<NOT_SUPPORTED>>>",
        "55",
        True,
        float("nan"),
        float("inf"),
        -float("inf"),
    ]
    if FIELDS[number].double:
        blanks += [fields.FP64_BLANK + code for code in (0, 1, 2, 3, 15)]
    else:
        blanks += [base + code for base in (0x7FFFFFF0, 0x7FFFFFFFFFFFFFF0) for code in (0, 1, 2, 3, 15)]
    for blank in blanks:
        assert readings_of({number: blank}) == {}, blank


def test_only_temperatures_may_be_negative():
    negative = {
        key for number in FIELDS for key in readings_of({number: -1.0 if FIELDS[number].double else -1})
    }
    limits = {f"temperature_limit/{limit}" for limit in ("slowdown", "shutdown", "core_max", "memory_max")}
    assert negative == {"temperature/core", "temperature/memory", "temperature_margin"} | limits
    assert readings_of({150: -273}) == {"temperature/core": -273.0}
    assert readings_of({150: -274, 140: -1e308, 153: -1e308}) == {}


def test_counter_may_exceed_32_bit_blank():
    # 2.15e9 mJ are 2.15 MJ: 51 minutes at 700 W.
    assert readings_of({156: 0x7FFFFFEF}) == {"energy": 2_147_483.631}
    assert readings_of({156: 0x80000000}) == {"energy": 2_147_483.648}


def test_ratio_above_one_is_dropped():
    assert readings_of({1002: 1.04, 203: 106, 1004: 1.06}) == {"activity/sm": 1.04}


def test_impossible_zero_is_passed_on():
    assert readings_of({203: 100, 1001: 0.0}) == {"activity/utilization": 1.0, "activity/engine": 0.0}


def test_event_reasons_are_bits():
    found = readings_of({112: 0x84})
    assert {key for key, value in found.items() if value} == {"throttled/power", "throttled/hw_power_brake"}
    assert len(found) == 9 and set(found.values()) == {0.0, 1.0}


def test_unknown_recovery_action():
    assert readings_of({1523: 99}) == {"recovery/unknown": 1.0}


def test_mean_rate_wins_over_a_measurement_of_20_ms():
    assert readings_of({200: 7, 201: 8, 1009: 5, 1010: 6}) == readings_of({1009: 5, 1010: 6})
    assert readings_of({200: 7, 1009: fields.INT64_BLANK}) == {"link_rate/pcie/transmit": 7000.0}


def test_the_finer_of_two_fields_wins():
    assert readings_of({156: 1999, 1611: 1}) == {"energy": 1.999}
    assert readings_of({252: 1, 1627: 1_100_000}) == {"memory/used": 1_100_000.0}
    both = readings_of({449: 9, 1011: 1, 1012: 2, 843: 7, 897: 8})
    assert both == {"link_rate/nvlink/transmit": 1.0, "link_rate/nvlink/receive": 2.0}


def test_instance_reports_only_its_own_fields():
    values = {number: raw for number, (raw, _, _) in BY_HAND.items()}
    keys = set(readings_of(values, instance=True))
    assert {key.split("/")[0] for key in keys} == {"activity", "memory"}
    assert "activity/utilization" not in keys and "activity/tensor" in keys


def test_sm_activity_from_totals_of_cycles():
    cycles = fields.SmCycles()

    def ratio(device: str, values: dict) -> float | None:
        readings = {}
        cycles.add_activity(device, values, readings)
        return readings.get("activity/sm")

    assert ratio("a", {1084: 1000, 1085: 100}) is None
    assert ratio("a", {1084: 3000, 1085: 600}) == 0.25
    assert ratio("a", {1084: 3000, 1085: 600}) is None  # The same measurement again.
    assert ratio("a", {1084: 10, 1085: 5}) is None  # Reset.
    assert ratio("a", {1084: 20, 1085: 5}) == 0.0
    assert ratio("a", {1084: 30}) is None
    assert ratio("a", {1084: 40, 1085: 6}) is None
    assert ratio("a", {1084: 50, 1085: 60}) is None  # More active than elapsed.
    cycles.keep({"b"})
    assert ratio("a", {1084: 60, 1085: 60}) is None


@given(
    st.dictionaries(
        st.sampled_from(sorted(FIELDS)), st.one_of(st.none(), st.text(), st.integers(), st.floats())
    )
)
@example({1523: -1})
@example({112: 2**80})
def test_any_value_gives_valid_readings(values):
    found = readings_of(values)
    gpu_sample.check(gpu_sample.Sample("dcgm", 0, [gpu_sample.Gpu("GPU-1", readings=found)]))
