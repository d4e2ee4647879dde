"""prometheus-node-exporter as an oracle: it reads the same trees, and must have the same numbers.

Of what both have: processors, memory, swap, faults, pressure, disks, NFS, NUMA, packets, huge pages, memory errors,
temperatures, throttled processors and NVMe; and of this machine, whose clock and file systems no tree has. Debian's
package is enough: apt-get install prometheus-node-exporter.
"""

import shutil
import signal
import subprocess
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.node.node_tree import samples
from support.node.storage_tree import MOUNTINFO, MOUNTSTATS, ScriptedProbes
from support.servers.servers import free_ports, wait_until

from goodput.metrics import Families
from goodput_exporters.collector import Settings
from goodput_exporters.collectors.hardware.collector import Hardware
from goodput_exporters.collectors.host.collector import Host
from goodput_exporters.collectors.local_filesystems.collector import LocalFilesystems
from goodput_exporters.collectors.numa.collector import Numa
from goodput_exporters.collectors.storage.collector import Storage
from goodput_exporters.collectors.storage.filesystem_probe import FilesystemProbe

ORACLE = shutil.which("prometheus-node-exporter") or shutil.which("node_exporter")
COLLECTORS = (
    "cpu",
    "diskstats",
    "edac",
    "hwmon",
    "loadavg",
    "meminfo",
    "meminfo_numa",
    "mountstats",
    "nvme",
    "pressure",
    "softnet",
    "stat",
    "thermal_zone",
    "vmstat",
)
VMSTAT = "--collector.vmstat.fields=^(oom_kill|pswp|pgmajfault)"

pytestmark = pytest.mark.skipif(ORACLE is None, reason="prometheus-node-exporter is not installed")


LIVE_COLLECTORS = ("filesystem", "stat", "timex")


def scrape(root, collectors=COLLECTORS) -> dict:
    """{(name, labels): value} that the oracle gives of root/proc and root/sys."""
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}/metrics"
    command = [
        *(ORACLE, f"--web.listen-address=127.0.0.1:{port}", "--web.disable-exporter-metrics", VMSTAT),
        *(f"--path.procfs={root}/proc", f"--path.sysfs={root}/sys", "--collector.disable-defaults"),
        *(f"--path.udev.data={root}/udev", *(f"--collector.{name}" for name in collectors)),
    ]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            text = wait_until(lambda: process.poll() or fetch(url), 60, "the oracle's answer")
            assert process.returncode is None, f"the oracle ended with {process.returncode}"
        finally:
            process.send_signal(signal.SIGTERM)
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def fetch(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.read().decode()
    except OSError:
        return ""


def write(root, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """(ours, the oracle's) on one tree."""
    from support.node import hardware_tree, node_tree

    root = tmp_path_factory.mktemp("oracle")
    node_tree.write_tree(root)
    hardware_tree.write_tree(root)
    (root / "sys/block/loop0/size").unlink()
    for node in (0, 1):
        base = f"sys/devices/system/node/node{node}"
        meminfo = (
            f"Node {node} MemTotal: {900 + node} kB\nNode {node} MemFree: 5 kB\nNode {node} FilePages: 7 kB\n"
        )
        stat = (
            f"numa_hit {node}1\nnuma_miss 2\nnuma_foreign 3\ninterleave_hit 4\nlocal_node 5\nother_node 6\n"
        )
        write(root, {f"{base}/meminfo": meminfo, f"{base}/numastat": stat, f"{base}/cpulist": f"{node}\n"})
    for resource, micros in (("memory", 2_000_003), ("io", 2_544_954)):
        line = "{0} avg10=0.00 avg60=0.50 avg300=1.25 total={1}\n"
        text = line.format("some", micros) + line.format("full", micros // 2)
        write(root, {f"proc/pressure/{resource}": text})
    # The oracle wants proc/self to be a link, and a count of errors for each operation.
    write(
        root,
        {
            "proc/42/mountinfo": MOUNTINFO,
            "proc/42/mountstats": MOUNTSTATS.replace(" 1 1 1 1 1 1", " 1 1 1 1 1 1 0"),
        },
    )
    (root / "proc/self").symlink_to("42")
    settings, families = Settings(directory="", procfs=f"{root}/proc", sysfs=f"{root}/sys"), Families("node")
    probes = ScriptedProbes()
    probes.answers = dict.fromkeys(("/data", "/my scratch", "/bucket"), "error 5")
    storage = Storage(settings, FilesystemProbe(start=probes))
    for collector in (Host(settings), Numa(settings), storage, Hardware(settings)):
        collector.collect(families)
    probes.end()
    return samples(families), scrape(root)


def theirs(oracle: dict, name: str, **labels) -> float:
    return oracle[name, tuple(sorted(labels.items()))]


def test_the_oracle_has_read_the_tree(both):
    _, oracle = both
    up = {
        labels[0][1]: value
        for (name, labels), value in oracle.items()
        if name == "node_scrape_collector_success"
    }
    assert up == dict.fromkeys(COLLECTORS, 1.0)


def sum_of(oracle: dict, name: str, **labels) -> float:
    """The oracle's values with these labels together."""
    return sum(
        value
        for (one, pairs), value in oracle.items()
        if one == name and labels.items() <= dict(pairs).items()
    )


def test_pressure(both):
    ours, oracle = both
    for resource, waits in (("cpu", ("some",)), ("memory", ("some", "full")), ("io", ("some", "full"))):
        for kind in waits:
            name = f"node_pressure_{resource}_{'waiting' if kind == 'some' else 'stalled'}_seconds_total"
            mine = ours["goodput_host_pressure_seconds_total", (kind, resource)]
            assert mine == pytest.approx(theirs(oracle, name), abs=1e-6)


@pytest.mark.parametrize("device", ["sda", "nvme0n1"])
def test_disks(both, device):
    ours, oracle = both
    names = {
        "goodput_host_disk_bytes_total": ("node_disk_read_bytes_total", "node_disk_written_bytes_total"),
        "goodput_host_disk_operations_total": (
            "node_disk_reads_completed_total",
            "node_disk_writes_completed_total",
        ),
        "goodput_host_disk_operation_seconds_total": (
            "node_disk_read_time_seconds_total",
            "node_disk_write_time_seconds_total",
        ),
    }
    for mine, (read, write) in names.items():
        assert ours[mine, (device, "read")] == pytest.approx(theirs(oracle, read, device=device))
        assert ours[mine, (device, "write")] == pytest.approx(theirs(oracle, write, device=device))
    for mine, name in (
        ("goodput_host_disk_in_flight", "node_disk_io_now"),
        ("goodput_host_disk_busy_seconds_total", "node_disk_io_time_seconds_total"),
    ):
        assert ours[mine, (device,)] == pytest.approx(theirs(oracle, name, device=device))


def test_which_disks_there_are(both):
    """The oracle leaves out partitions by their names, we by sysfs; both leave out loop and RAM, we zram too."""
    ours, oracle = both
    mine = {labels[0] for name, labels in ours if name == "goodput_host_disk_in_flight"}
    his = {dict(labels)["device"] for name, labels in oracle if name == "node_disk_io_now"}
    assert mine == his - {"zram0"}


def test_memory_and_paging(both):
    ours, oracle = both
    for kind, name in (
        ("total", "MemTotal"), ("available", "MemAvailable"), ("cached", "Cached"), ("dirty", "Dirty"),
        ("writeback", "Writeback"), ("shared", "Shmem"), ("swap_total", "SwapTotal"), ("swap_free", "SwapFree"),
    ):  # fmt: skip
        assert ours["goodput_host_memory_bytes", (kind,)] == theirs(oracle, f"node_memory_{name}_bytes")
    assert ours["goodput_host_oom_kills_total", ()] == theirs(oracle, "node_vmstat_oom_kill")
    assert ours["goodput_host_major_faults_total", ()] == theirs(oracle, "node_vmstat_pgmajfault")


def test_processors(both):
    ours, oracle = both
    assert ours["goodput_host_processes_blocked", ()] == theirs(oracle, "node_procs_blocked")
    assert (
        ours["goodput_host_load1_ratio", ()] == theirs(oracle, "node_load1") / ours["goodput_host_cpus", ()]
    )
    # The oracle sums nothing: its processors together are ours, but for what the first line rounds.
    for mode in ("user", "idle", "iowait"):
        each = [theirs(oracle, "node_cpu_seconds_total", cpu=cpu, mode=mode) for cpu in ("0", "1")]
        assert ours["goodput_host_cpu_seconds_total", (mode,)] == pytest.approx(sum(each))


def test_nfs(both):
    ours, oracle = both
    of = {"export": "server:/export/data", "mountaddr": "", "protocol": "tcp"}
    for mine, name in (
        (("read", "/data", "server"), "node_mountstats_nfs_total_read_bytes_total"),
        (("write", "/data", "server"), "node_mountstats_nfs_total_write_bytes_total"),
    ):
        assert ours["goodput_nfs_bytes_total", mine] == theirs(oracle, name, **of)
    for mine, direct, cached in (("read", "direct_read", "read"), ("write", "direct_write", "write")):
        names = [f"node_mountstats_nfs_{part}_bytes_total" for part in (direct, cached)]
        total = sum(theirs(oracle, name, **of) for name in names)
        assert ours["goodput_nfs_bytes_total", (mine, "/data", "application")] == total
    for operation in ("READ", "WRITE", "GETATTR"):
        prefix, labels = "node_mountstats_nfs_operations_", {**of, "operation": operation}
        at = "/data", operation.lower()
        assert ours["goodput_nfs_operations_total", at] == theirs(oracle, f"{prefix}requests_total", **labels)
        assert ours["goodput_nfs_transmissions_total", at] == theirs(
            oracle, f"{prefix}transmissions_total", **labels
        )
        assert ours["goodput_nfs_timeouts_total", at] == theirs(
            oracle, f"{prefix}major_timeouts_total", **labels
        )
        for part, name in (("queue", "queue"), ("response", "response"), ("total", "request")):
            his = theirs(oracle, f"{prefix}{name}_time_seconds_total", **labels)
            assert ours["goodput_nfs_operation_seconds_total", (*at, part)] == pytest.approx(his)


def test_numa(both):
    ours, oracle = both
    for node in ("0", "1"):
        for kind, name in (("total", "MemTotal"), ("free", "MemFree"), ("file", "FilePages")):
            assert ours["goodput_numa_memory_bytes", (kind, node)] == theirs(
                oracle, f"node_memory_numa_{name}", node=node
            )
        for kind, name in (("hit", "numa_hit"), ("miss", "numa_miss"), ("local", "local_node")):
            his = theirs(oracle, f"node_memory_numa_{name}_total", node=node)
            assert ours["goodput_numa_pages_total", (kind, node)] == his


def test_packets_and_boot_time(both):
    ours, oracle = both
    for mine, name in (("packets", "processed"), ("dropped", "dropped"), ("squeezed", "times_squeezed")):
        assert ours[f"goodput_host_softnet_{mine}_total", ()] == sum_of(oracle, f"node_softnet_{name}_total")
    assert ours["goodput_host_boot_timestamp_seconds", ()] == theirs(oracle, "node_boot_time_seconds")
    for cpu in ("0", "1"):
        busy = sum(
            theirs(oracle, "node_cpu_seconds_total", cpu=cpu, mode=mode)
            for mode in ("user", "nice", "system", "irq", "softirq", "steal")
        )
        assert ours["goodput_host_processor_seconds_total", (cpu, "busy")] == pytest.approx(busy)


def test_memory_errors(both):
    ours, oracle = both
    for controller in ("0", "1"):
        for kind in ("correctable", "uncorrectable"):
            his = theirs(oracle, f"node_edac_{kind}_errors_total", controller=controller)
            assert ours["goodput_host_memory_errors_total", (controller, kind)] == his


def test_temperatures(both):
    ours, oracle = both
    for (chip, device, sensor), his in {
        ("coretemp", "coretemp.0", "Package id 0"): ("platform_coretemp_0", "temp1"),
        ("nvme", "nvme0", "Composite"): ("nvme_nvme0", "temp1"),
    }.items():
        labels = dict(zip(("chip", "sensor"), his, strict=True))
        mine = ours["goodput_host_temperature_celsius", (chip, device, sensor)]
        assert mine == theirs(oracle, "node_hwmon_temp_celsius", **labels)
        mine = ours["goodput_host_temperature_limit_celsius", (chip, device, "max", sensor)]
        assert mine == pytest.approx(theirs(oracle, "node_hwmon_temp_max_celsius", **labels), rel=1e-12)
    zone = ours["goodput_host_temperature_celsius", ("thermal_zone", "thermal_zone0", "x86_pkg_temp")]
    assert zone == theirs(oracle, "node_thermal_zone_temp", type="x86_pkg_temp", zone="0")


def test_throttled_processors(both):
    ours, oracle = both
    for package in ("0", "1"):
        mine = ours["goodput_host_cpu_throttles_total", ("package", package)]
        assert mine == theirs(oracle, "node_cpu_package_throttles_total", package=package)
        mine = ours["goodput_host_cpu_throttles_total", ("core", package)]
        assert mine == sum_of(oracle, "node_cpu_core_throttles_total", package=package)


def test_nvme_controllers(both):
    ours, oracle = both
    his = {dict(labels)["device"]: dict(labels) for name, labels in oracle if name == "node_nvme_info"}
    mine = {labels[0]: labels for name, labels in ours if name == "goodput_host_nvme_info"}
    assert his.keys() == mine.keys() == {"nvme0", "nvme1"}
    for device, labels in his.items():
        assert mine[device] == (device, labels["firmware_revision"], labels["model"], labels["state"])


def test_this_machines_clock_and_file_systems():
    families, settings = Families("node"), Settings(directory="")
    for collector in (Host(settings), LocalFilesystems(settings)):
        collector.collect(families)
    ours, oracle = samples(families), scrape("", LIVE_COLLECTORS)
    assert ours["goodput_host_boot_timestamp_seconds", ()] == theirs(oracle, "node_boot_time_seconds")
    if ("goodput_host_clock_synchronised", ()) in ours:
        assert ours["goodput_host_clock_synchronised", ()] == theirs(oracle, "node_timex_sync_status")
        mine = ours["goodput_host_clock_correction_seconds", ()]
        assert mine == pytest.approx(theirs(oracle, "node_timex_offset_seconds"), abs=0.01)
    for name, labels in [key for key in ours if key[0] == "goodput_filesystem_info"]:
        fstype, mount, source = labels
        his = {"device": source, "fstype": fstype, "mountpoint": mount}
        if fstype == "tmpfs":
            continue  # The oracle leaves out what is below /dev.
        for mine, other in (
            (("goodput_filesystem_size_bytes", (mount,)), "size_bytes"),
            (("goodput_filesystem_readonly", (mount,)), "readonly"),
            (("goodput_filesystem_inodes", ("total", mount)), "files"),
        ):
            assert ours[mine] == theirs(oracle, f"node_filesystem_{other}", **his), name
        available = theirs(oracle, "node_filesystem_avail_bytes", **his)
        assert ours["goodput_filesystem_available_bytes", (mount,)] == pytest.approx(available, rel=0.1)
