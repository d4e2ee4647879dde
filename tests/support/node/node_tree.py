"""Fixture trees of procfs and sysfs, clocks moved by hand, and two small helpers of the node agent's tests."""

from __future__ import annotations

import time

import pytest
from support.node import node_rank

from goodput.metrics import Families
from goodput_exporters.collector import CollectorError

MS = 1_000_000
FILES = {
    "proc/stat": (
        "cpu  1000 20 300 40000 50 6 7 8 100 0\ncpu0 500 10 150 20000 25 3 4 4 50 0\n"
        "cpu1 500 10 150 20000 25 3 3 4 50 0\nintr 12345 1 2 3\nctxt 99\nbtime 1700000000\nprocs_running 3\nprocs_blocked 2\n"
    ),
    "proc/loadavg": "3.00 2.50 2.00 4/321 9876\n",
    "proc/meminfo": (
        "MemTotal:       16000000 kB\nMemFree:         1000000 kB\nMemAvailable:    8000000 kB\n"
        "Cached:          4000000 kB\nSwapTotal:          1000 kB\nSwapFree:            900 kB\n"
        "Dirty:               128 kB\nWriteback:            64 kB\nShmem:               256 kB\nHugePages_Total:       0\n"
    ),
    "proc/vmstat": "nr_free_pages 5\npswpin 7\npswpout 9\npgfault 1000\npgmajfault 11\noom_kill 2\n",
    "proc/pressure/cpu": "some avg10=0.09 avg60=1.98 avg300=5.84 total=54790694\n",
    "proc/pressure/memory": "some avg10=0.00 total=2000000\nfull avg10=0.00 total=1500000\n",
    "proc/pressure/io": "some avg10=0.00 total=2544954\nfull avg10=0.00 total=2345355\n",
    "proc/diskstats": (
        "   7       0 loop0 1 0 2 0 0 0 0 0 0 0 0\n"
        " 259       0 nvme0n1 34758 10434 2788474 12132 8599 39515 4573872 12220 0 6760 24666 3673 41 83928 251\n"
        " 259       1 nvme0n1p1 34000 10000 2700000 12000 8000 39000 4500000 12000 0 6000 24000 1 1 1 1\n"
        "   8       0 sda 10 0 100 5 20 0 200 6 0 7 11 0 0 0 0\n"
        "   8       1 sda1 9 0 90 5 19 0 190 6 0 7 11 0 0 0 0\n"
        " 253       0 zram0 0 0 0 0 0 0 0 0 0 0 0\n"
    ),
    "proc/net/snmp": (
        "Ip: Forwarding DefaultTTL\nIp: 1 64\n"
        "Tcp: RtoAlgorithm RtoMin MaxConn InSegs OutSegs RetransSegs InErrs\nTcp: 1 200 -1 702559 699820 744 0\n"
    ),
    # Of a kernel with processors in the thirteenth field; its second one is offline.
    "proc/net/softnet_stat": "".join(
        f"{counts} " + "00000000 " * 9 + f"{cpu:08x}\n"
        for cpu, counts in ((0, "0000000a 00000002 00000001"), (2, "ffffffff 00000000 00000010"))
    ),
    **{
        f"sys/kernel/mm/hugepages/hugepages-{size}kB/{name}_hugepages": f"{count}\n"
        for size, counts in ((2048, (100, 40, 7, 3)), (1048576, (8, 2, 0, 0)))
        for name, count in zip(("nr", "free", "resv", "surplus"), counts, strict=True)
    },
    f"proc/{node_rank.PID}/stat": f"{node_rank.PID} (train (x) y) S " + "0 " * 18 + f"{node_rank.TICKS} 0\n",
    "sys/block/nvme0n1/size": "1\n",
    "sys/block/sda/size": "1\n",
    "sys/block/loop0/size": "1\n",
    "sys/block/zram0/size": "1\n",
    "sys/class/net/bonding_masters": "bond0\n",
}
INTERFACES = {
    "eth0": {"speed": "100000\n", "carrier": "1\n", "carrier_changes": "3\n", "device/vendor": "0x15b3\n"},
    "eth1": {"speed": "-1\n", "carrier": "0\n", "carrier_changes": "0\n", "device/vendor": "0x15b3\n"},
    "docker0": {"carrier_changes": "1\n"},
    "lo": {"carrier": "1\n"},
}


def write_tree(root) -> None:
    files = dict(FILES)
    for at, (name, values) in enumerate(INTERFACES.items()):
        files.update({f"sys/class/net/{name}/{file}": text for file, text in values.items()})
        for direction in ("rx", "tx"):
            for offset, kind in enumerate(("bytes", "packets", "errors", "dropped")):
                number = 1000 * at + 10 * offset + (direction == "tx")
                files[f"sys/class/net/{name}/statistics/{direction}_{kind}"] = f"{number}\n"
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


class Clock:
    """Both clocks of a node, moved by hand."""

    def __init__(self):
        self.seconds = 0.0

    def monotonic_ns(self) -> int:
        return node_rank.START_MONO_NS + int(self.seconds * 1e9)

    def unix_ns(self) -> int:
        return node_rank.START_UNIX_NS + int(self.seconds * 1e9)


def wait_until(condition, seconds: float = 60.0):
    """The condition's first true value. Fails the test after so many seconds."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


def samples(families) -> dict:
    """{(sample name, (label values in sorted label order)): value} of a Families."""
    found = {}
    for family in families:
        for sample in family.samples:
            key = sample.name, tuple(value for _, value in sorted(sample.labels.items()))
            assert key not in found, key
            found[key] = sample.value
    return found


def collect(collector, problem: str | None = None) -> dict:
    """What a collector adds; with `problem`, it must raise that CollectorError and keep the rest."""
    families = Families("node")
    if problem is None:
        collector.collect(families)
    else:
        with pytest.raises(CollectorError, match=problem):
            collector.collect(families)
    return samples(families)


def of(found: dict, series: str) -> dict:
    """Of `samples`, one series by its labels' values."""
    return {labels: value for (name, labels), value in found.items() if name == series}
