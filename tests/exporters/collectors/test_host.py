"""The host's counters: parsers on known texts and on any text, the collector on a fixture tree."""

import os
import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.node.broken_files import parse_or_raise
from support.node.node_tree import FILES, of, samples

from goodput.metrics import Families
from goodput_exporters.collector import CollectorError, NoData, ParseError, Settings
from goodput_exporters.collectors.host import collector
from goodput_exporters.collectors.host.clock import ClockState, parse_timex, read_clock
from goodput_exporters.collectors.host.collector import Host, is_whole_disk, without_small_decrease
from goodput_exporters.collectors.host.softnet import Softnet, SoftnetTotals, parse_softnet
from goodput_exporters.system.files import read_text

PARSERS = {
    "proc/stat": collector.parse_stat,
    "proc/loadavg": collector.parse_loadavg,
    "proc/meminfo": collector.parse_memory,
    "proc/vmstat": collector.parse_vmstat,
    "proc/pressure/io": collector.parse_pressure,
    "proc/diskstats": collector.parse_diskstats,
    "proc/net/snmp": collector.parse_tcp_retransmits,
    "proc/net/softnet_stat": parse_softnet,
}
# What the parsers look for, and what is nearly that.
WORDS = """cpu cpu0 cpu1 0 1 -1 1e9 nan inf ² ٣ MemTotal: kB MB some full total= total=x total=5 avg10=0 Tcp:
RetransSegs sda 8 procs_blocked btime oom_kill pswpin 0000000a""".split()  # noqa: SIM905


def collect(settings, problem=None) -> dict:
    families = Families("node")
    if problem is None:
        Host(settings).collect(families)
    else:
        with pytest.raises(CollectorError, match=problem):
            Host(settings).collect(families)
    return samples(families)


def test_known_texts():
    stat = collector.parse_stat(FILES["proc/stat"])
    assert (stat.cpus, stat.blocked) == (2, 2)
    assert stat.modes == {
        "user": 1000, "nice": 20, "system": 300, "idle": 40000, "iowait": 50, "irq": 6, "softirq": 7, "steal": 8,
    }  # fmt: skip
    assert collector.parse_loadavg(FILES["proc/loadavg"]) == 3.0
    assert collector.parse_memory(FILES["proc/meminfo"]) == {
        "total": 16_000_000 * 1024, "free": 1_000_000 * 1024, "available": 8_000_000 * 1024, "cached": 4_000_000 * 1024, "dirty": 128 * 1024,
        "writeback": 64 * 1024, "shared": 256 * 1024, "swap_total": 1000 * 1024, "swap_free": 900 * 1024,
    }  # fmt: skip
    assert collector.parse_pressure(FILES["proc/pressure/cpu"]) == {"some": 54.790694}
    assert collector.parse_pressure(FILES["proc/pressure/io"]) == {"some": 2.544954, "full": 2.345355}
    assert collector.parse_vmstat(FILES["proc/vmstat"]) == {
        "pswpin": 7,
        "pswpout": 9,
        "pgmajfault": 11,
        "oom_kill": 2,
    }
    assert collector.parse_diskstats(FILES["proc/diskstats"])["nvme0n1"] == collector.Disk(
        read_bytes=2788474 * 512, read_operations=34758, read_seconds=12.132,
        written_bytes=4573872 * 512, write_operations=8599, write_seconds=12.22, in_flight=0, busy_seconds=6.76,
    )  # fmt: skip
    assert collector.parse_tcp_retransmits(FILES["proc/net/snmp"]) == 744


def test_this_kernels_own_files_parse():
    for name, parse in PARSERS.items():
        try:
            with open("/" + name) as file:
                text = file.read()
        except OSError:
            continue  # Pressure accounting may be off.
        parse(text)


@pytest.mark.parametrize("parse", PARSERS.values(), ids=lambda parse: parse.__name__)
def test_any_text_parses_or_raises(parse):
    words = st.sampled_from([*WORDS, "1" * 30])
    lines = st.lists(st.lists(words, max_size=16).map(" ".join), max_size=4).map("\n".join)

    @given(st.one_of(st.text(), lines))
    @example("")
    @example("cpu")
    @example("some total=" + "9" * 10_000)
    @example("1" * 10_000)
    def run(text):
        parse_or_raise(parse, text)

    run()


@pytest.mark.parametrize("name", PARSERS)
def test_truncated_text_parses_or_raises(name):
    for end in range(len(FILES[name])):
        try:
            PARSERS[name](FILES[name][:end])
        except ParseError:
            pass


@pytest.mark.parametrize(
    "parse, text",
    [
        (collector.parse_stat, "intr 1 2 3\n"),
        (collector.parse_stat, "cpu 1 2\n"),
        (collector.parse_stat, "cpu 1 2 x 4\n"),
        (collector.parse_stat, "cpu 1 2 3 4\nprocs_blocked\n"),
        (collector.parse_stat, "cpu 1 2 3 4\nbtime x\n"),
        (parse_softnet, "0000000a 0000000g 0\n"),
        (parse_softnet, "0000000a 00000000\n"),
        (collector.parse_vmstat, "pgfault 1\n"),
        (collector.parse_vmstat, "oom_kill -1\n"),
        (collector.parse_loadavg, ""),
        (collector.parse_loadavg, "nan 1 1"),
        (collector.parse_loadavg, "-1 1 1"),
        (collector.parse_memory, "MemFree: 1 kB\n"),
        (collector.parse_memory, "MemTotal: 1 MB\n"),
        (collector.parse_memory, "MemTotal: kB\n"),
        (collector.parse_pressure, ""),
        (collector.parse_pressure, "some avg10=0.00\n"),
        (collector.parse_diskstats, "8 0 sda 1 2 3\n"),
        (collector.parse_tcp_retransmits, "Tcp: RetransSegs\n"),
        (collector.parse_tcp_retransmits, "Tcp: a RetransSegs\nTcp: 1\n"),
    ],
)
def test_malformed_texts_raise(parse, text):
    with pytest.raises(ParseError):
        parse(text)


def test_the_whole_tree(settings):
    found = collect(settings)
    assert found["goodput_host_cpu_seconds_total", ("user",)] == 10.0
    assert found["goodput_host_cpus", ()] == 2
    assert found["goodput_host_load1_ratio", ()] == 1.5
    assert found["goodput_host_memory_bytes", ("dirty",)] == 131072
    assert found["goodput_host_pressure_seconds_total", ("full", "memory")] == 1.5
    assert ("goodput_host_pressure_seconds_total", ("full", "cpu")) not in found
    assert found["goodput_host_disk_bytes_total", ("sda", "write")] == 200 * 512
    assert found["goodput_host_disk_busy_seconds_total", ("nvme0n1",)] == 6.76
    assert found["goodput_host_disk_operations_total", ("sda", "read")] == 10
    assert found["goodput_host_disk_operations_total", ("sda", "write")] == 20
    assert found["goodput_host_disk_operation_seconds_total", ("sda", "write")] == 0.006
    assert found["goodput_host_disk_operation_seconds_total", ("nvme0n1", "read")] == 12.132
    assert found["goodput_host_disk_in_flight", ("sda",)] == 0
    assert found["goodput_host_processes_blocked", ()] == 2
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    assert found["goodput_host_swap_bytes_total", ("in",)] == 7 * page_bytes
    assert found["goodput_host_swap_bytes_total", ("out",)] == 9 * page_bytes
    assert found["goodput_host_major_faults_total", ()] == 11
    assert found["goodput_host_oom_kills_total", ()] == 2
    assert {labels[0] for name, labels in found if name == "goodput_host_disk_bytes_total"} == {
        "sda",
        "nvme0n1",
    }
    assert found["goodput_host_tcp_retransmits_total", ()] == 744


def test_processors_packets_and_huge_pages(settings):
    found = collect(settings)
    # 40,000 of idle and 25 of iowait are not busy; 3 of irq and 4 or 3 of softirq are.
    assert of(found, "goodput_host_processor_seconds_total") == {
        ("0", "busy"): 6.71, ("0", "interrupt"): 0.07, ("1", "busy"): 6.7, ("1", "interrupt"): 0.06,
    }  # fmt: skip
    assert found["goodput_host_boot_timestamp_seconds", ()] == 1_700_000_000
    assert found["goodput_host_softnet_packets_total", ()] == 0xFFFFFFFF + 10
    assert found["goodput_host_softnet_dropped_total", ()] == 2
    assert found["goodput_host_softnet_squeezed_total", ()] == 17
    pages = of(found, "goodput_host_huge_pages")
    assert {kind: count for (kind, size), count in pages.items() if size == str(2 << 20)} == {
        "total": 100, "free": 40, "reserved": 7, "surplus": 3,
    }  # fmt: skip
    assert pages["total", str(1 << 30)] == 8 and len(pages) == 8


def test_malformed_line_costs_only_itself(tree, settings):
    whole = collect(settings)
    (tree / "proc/stat").write_text(FILES["proc/stat"].replace("cpu1 500", "cpu1 x"))
    found = collect(settings, problem="proc/stat: 1 malformed lines of processors")
    assert {labels for _, labels in set(whole) - set(found)} == {("1", "busy"), ("1", "interrupt")}
    (tree / "proc/stat").write_text(FILES["proc/stat"])
    (tree / "proc/net/softnet_stat").write_text("nonsense\n" + FILES["proc/net/softnet_stat"])
    found = collect(settings, problem="softnet_stat: 1 malformed lines")
    assert found == whole


def test_packet_counts_of_32_bits_go_on():
    totals, big = SoftnetTotals(), 0xFFFFFFF0
    assert totals.add({0: Softnet(big, 1, 0), 1: Softnet(5, 0, 0)}) == (big + 5, 1, 0)
    assert totals.add({0: Softnet(4, 1, 0)}) == (big + 5 + 20, 1, 0), "20 more, and processor 1 is offline"
    assert totals.add({0: Softnet(4, 1, 0), 1: Softnet(7, 0, 2)}) == (big + 27, 1, 2)


def test_older_kernels_tell_processors_by_order():
    text = "0000000a 00000000 00000001 00000000\n0000000b 00000000 00000000 00000000\n"
    assert parse_softnet(text).processors == {0: (10, 0, 1), 1: (11, 0, 0)}


def timex(offset: int, status: int) -> bytes:
    return struct.pack("@Illlli", 0, offset, 0, 16_000, 250, status) + bytes(200)


def test_clock_units_and_synchronisation():
    assert parse_timex(timex(-1500, 0x2001), 0) == ClockState(True, -1.5e-6, 250e-6, 0.016)
    assert parse_timex(timex(1500, 0x0041), 5) == ClockState(False, 1.5e-3, 250e-6, 0.016)


def test_clock_is_of_the_live_machine_alone(tree, settings):
    state = ClockState(True, 1e-6, 2e-6, 3e-6)
    for is_live in (False, True):
        families = Families("node")
        Host(settings, lambda: state).collect(families)
        found = {name: value for (name, _), value in samples(families).items() if "clock" in name}
        assert bool(found) is is_live
        if not is_live:
            (tree / "proc/self").symlink_to("42")
    assert of(samples(families), "goodput_host_clock_error_seconds") == {
        ("estimated",): 2e-6,
        ("maximum",): 3e-6,
    }
    assert found["goodput_host_clock_synchronised"] == 1
    assert found["goodput_host_clock_correction_seconds"] == 1e-6


def test_this_machines_clock_is_readable():
    state = read_clock()
    if state is not None:  # A container may forbid the call.
        assert abs(state.offset_seconds) < 1 and 0 <= state.estimated_error_seconds < 3600


@pytest.mark.parametrize(
    "name",
    [name for name in PARSERS if name != "proc/loadavg"],
)
def test_malformed_file_costs_only_its_series(tree, settings, name):
    whole = collect(settings)
    (tree / name).write_bytes(b"\xff\x00 nonsense")
    found = collect(settings, problem=name.rpartition("/")[2])
    lost = {series for series, _ in set(whole) - set(found)}
    assert lost and len(lost) <= 6 and set(found) < set(whole)


@pytest.mark.parametrize(
    "name",
    [*PARSERS, "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"],
)
def test_a_missing_file_is_no_error(tree, settings, name):
    whole = collect(settings)
    (tree / name).unlink()
    assert set(collect(settings)) < set(whole)


def test_an_unreadable_file_is_an_error(tree, settings):
    (tree / "proc/meminfo").unlink()
    (tree / "proc/meminfo").mkdir()  # Reading it fails, for root too.
    found = collect(settings, problem="meminfo")
    assert ("goodput_host_cpus", ()) in found and ("goodput_host_memory_bytes", ("total",)) not in found


def test_no_procfs_is_no_data(tmp_path):
    with pytest.raises(NoData):
        Host(Settings(directory="", procfs=str(tmp_path), sysfs=str(tmp_path))).collect(Families("node"))


def test_disks_recognised_by_name_without_sysfs(tree, settings):
    (tree / "sys/block").rename(tree / "sys/hidden")
    found = collect(settings)
    assert {labels[0] for name, labels in found if name == "goodput_host_disk_bytes_total"} == {
        "sda",
        "nvme0n1",
    }


@pytest.mark.parametrize(
    "name, listed, whole",
    [
        ("sda", None, True), ("sda1", None, False), ("vda", None, True), ("xvda1", None, False),
        ("nvme0n1", None, True), ("nvme0n1p2", None, False), ("mmcblk0", None, True), ("mmcblk0p1", None, False),
        ("dm-0", None, True), ("md0", None, True), ("md127", None, True), ("loop0", None, False),
        ("loop0", {"loop0"}, False), ("ram0", {"ram0"}, False), ("zram0", {"zram0"}, False),
        ("sda", {"sda"}, True), ("sda1", {"sda"}, False), ("cciss/c0d0", {"cciss!c0d0"}, True),
    ],
)  # fmt: skip
def test_whole_disks(name, listed, whole):
    assert is_whole_disk(name, listed) is whole


def test_small_cpu_decrease_is_ignored(tree, settings):
    collector, seen = Host(settings), []
    for idle in (40000, 39900, 40100, 5):
        (tree / "proc/stat").write_text(FILES["proc/stat"].replace("40000", str(idle)))
        families = Families("node")
        collector.collect(families)
        seen.append(samples(families)["goodput_host_cpu_seconds_total", ("idle",)])
    assert seen == [400.0, 400.0, 401.0, 0.05]
    assert without_small_decrease(10.0, 6.9) == 6.9 and without_small_decrease(10.0, 7.1) == 10.0


def test_disks_have_requests_in_flight(tree, settings):
    (tree / "proc/diskstats").write_text("   8       0 sda 10 0 100 5 20 0 200 6 3 7 11\n")
    assert collect(settings)["goodput_host_disk_in_flight", ("sda",)] == 3


def test_missing_counts_leave_series_out(tree, settings):
    (tree / "proc/vmstat").write_text("pgmajfault 4\n")
    (tree / "proc/stat").write_text("cpu 1 2 3 4\ncpu0 1 2 3 4\n")
    found = collect(settings)
    assert found["goodput_host_major_faults_total", ()] == 4
    assert {name for name, _ in found}.isdisjoint(
        {"goodput_host_oom_kills_total", "goodput_host_swap_bytes_total", "goodput_host_processes_blocked"}
    )


def test_file_is_read_to_its_end():
    """Files of records, as vmstat and mountinfo, give one read no more than about a page."""
    text = read_text("/proc/self/maps")
    with open("/proc/self/maps") as file:
        assert (
            len(text) > 4096 and text.splitlines()[-1].split()[-1] == file.read().splitlines()[-1].split()[-1]
        )


def test_file_is_read_up_to_its_limit(tmp_path):
    (tmp_path / "long").write_bytes(b"x" * 300_000)
    assert len(read_text(str(tmp_path / "long"))) == 300_000
    assert len(read_text(str(tmp_path / "long"), 100_000)) == 100_000
