"""NUMA: nodes, where devices and ranks are, and trees that hold anything."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.node.attribution_tree import add_process
from support.node.broken_files import parse_or_raise
from support.node.node_rank import PID, TICKS, Rank
from support.node.node_tree import collect, of

from goodput.metrics import Families
from goodput_exporters.collector import NoData, ParseError, Settings
from goodput_exporters.collectors.numa import collector
from goodput_exporters.collectors.numa.collector import DEVICES_SECONDS, NODES_MAX, Numa
from goodput_exporters.system.processes import Processes

MEMINFO = (
    "Node {0} MemTotal:       1000 kB\nNode {0} MemFree:         {1} kB\nNode {0} MemUsed:          5 kB\n"
    "Node {0} FilePages:        70 kB\nNode {0} HugePages_Total:     0\n"
)
NUMASTAT = "numa_hit 11\nnuma_miss 22\nnuma_foreign 33\ninterleave_hit 44\nlocal_node 55\nother_node {0}\n"
PCI = "sys/bus/pci/devices"


def write(root, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def nodes(tree):
    """Two sockets of four processors, and a node of memory alone, as a GPU's."""
    for node, cpus in ((0, "0-1,4-5\n"), (1, "2-3,6-7\n"), (8, "\n")):
        write(
            tree,
            {
                f"sys/devices/system/node/node{node}/meminfo": MEMINFO.format(node, 100 + node),
                f"sys/devices/system/node/node{node}/numastat": NUMASTAT.format(60 + node),
                f"sys/devices/system/node/node{node}/cpulist": cpus,
            },
        )
    write(tree, {"sys/devices/system/node/online": "0-1,8\n"})
    return tree


def test_nodes(nodes, settings):
    found = collect(Numa(settings))
    assert of(found, "goodput_numa_cpus") == {("0",): 4, ("1",): 4, ("8",): 0}
    memory = of(found, "goodput_numa_memory_bytes")
    assert memory["total", "8"] == 1024_000 and memory["free", "1"] == 101 * 1024
    assert memory["file", "0"] == 70 * 1024 and len(memory) == 9
    pages = of(found, "goodput_numa_pages_total")
    assert {kind: pages[kind, "1"] for kind in ("hit", "miss", "foreign", "local", "other")} == {
        "hit": 11, "miss": 22, "foreign": 33, "local": 55, "other": 61,
    }  # fmt: skip


def test_devices(nodes, settings, clock):
    for address, kind, vendor, node in (
        ("0000:3b:00.0", "0x030200", "0x10de", "1"),
        ("0000:5e:00.0", "0x030000", "0x1002", "0"),
        ("0000:5f:00.0", "0x030200", "0x10de", "-1"),
        ("0000:60:00.0", "0x020700", "0x15b3", "0"),
    ):
        root = f"{PCI}/{address}"
        files = {
            f"{root}/class": kind + "\n",
            f"{root}/vendor": vendor + "\n",
            f"{root}/numa_node": node + "\n",
        }
        write(nodes, files)
    write(
        nodes, {"sys/class/net/eth0/device/numa_node": "0\n", "sys/class/net/eth1/device/numa_node": "-1\n"}
    )
    write(nodes, {"sys/class/infiniband/mlx5_0/device/numa_node": "1\n"})
    collector = Numa(settings)
    expected = {
        ("0000:3b:00.0", "gpu"): 1, ("0000:5e:00.0", "gpu"): 0, ("eth0", "network"): 0, ("mlx5_0", "infiniband"): 1,
    }  # fmt: skip
    assert of(collect(collector), "goodput_numa_device_node") == expected
    write(nodes, {"sys/class/infiniband/mlx5_1/device/numa_node": "1\n"})
    clock.seconds = DEVICES_SECONDS - 1
    assert of(collect(collector), "goodput_numa_device_node") == expected
    clock.seconds = DEVICES_SECONDS
    assert of(collect(collector), "goodput_numa_device_node")["mlx5_1", "infiniband"] == 1


def test_where_a_rank_runs(nodes, settings, ranks):
    rank = Rank(nodes / "pages")
    rank.step({"forward": 1000})
    ranks.poll()
    collector = Numa(settings)
    collector.ranks = ranks.processes
    for cpus, processor, expected, ran_on in (
        ("2-3,6", 6, {("0",): 0, ("1",): 3}, 1),
        ("0-1023", 4, {("0",): 4, ("1",): 4}, 0),
        ("0", 99, {("0",): 1, ("1",): 0}, None),
        ("nonsense", 0, {}, 0),
    ):
        add_process(nodes, PID, TICKS, cpus=cpus, processor=processor)
        found = collect(collector, problem="Cpus_allowed_list: 'nonsense'" if cpus == "nonsense" else None)
        allowed = of(found, "goodput_rank_cpus")
        assert {(node,): count for (node, _, _), count in allowed.items()} == expected
        assert of(found, "goodput_rank_numa_node") == ({} if ran_on is None else {("0", "r1"): ran_on})


def test_reused_pid_gives_no_rank_series(nodes, settings, ranks):
    rank = Rank(nodes / "pages")
    rank.step({"forward": 1000})
    add_process(nodes, PID, TICKS)
    ranks.poll()
    collector = Numa(settings)
    collector.ranks = ranks.processes
    assert of(collect(collector), "goodput_rank_cpus")
    add_process(nodes, PID, TICKS + 1)
    found = collect(collector)
    assert not of(found, "goodput_rank_cpus") and not of(found, "goodput_rank_numa_node")


def test_process_that_ends_during_read_gives_no_series(nodes, settings, ranks):
    class Ending(Processes):
        def status(self, pid, *arguments):
            add_process(nodes, PID, TICKS + 1)
            return super().status(pid, *arguments)

    rank = Rank(nodes / "pages")
    rank.step({"forward": 1000})
    add_process(nodes, PID, TICKS)
    ranks.poll()
    collector = Numa(settings, Ending(settings.procfs))
    collector.ranks = ranks.processes
    assert not of(collect(collector), "goodput_rank_cpus")


@pytest.mark.parametrize("text", ["nonsense", "", "1 1", "0x1", "1" * 30])
def test_malformed_node_of_a_device_is_told_until_mended(nodes, settings, clock, text):
    gpu = f"{PCI}/0000:3b:00.0"
    write(nodes, {f"{gpu}/class": "0x030200\n", f"{gpu}/vendor": "0x10de\n", f"{gpu}/numa_node": text})
    write(nodes, {"sys/class/net/eth0/device/numa_node": "0\n", "sys/class/net/eth1/device/numa_node": text})
    collector = Numa(settings)
    for name in (f"{gpu}/numa_node", "eth1/device/numa_node", f"{gpu}/numa_node"):
        found = collect(collector, problem=name)
        assert of(found, "goodput_numa_device_node") == {("eth0", "network"): 0}
        assert len(of(found, "goodput_numa_cpus")) == 3
    write(nodes, {f"{gpu}/numa_node": "1\n", "sys/class/net/eth1/device/numa_node": "-1\n"})
    clock.seconds = DEVICES_SECONDS
    found = of(collect(collector), "goodput_numa_device_node")
    assert found == {("0000:3b:00.0", "gpu"): 1, ("eth0", "network"): 0}


@pytest.mark.parametrize(
    "name, lost", [("meminfo", "memory_bytes"), ("numastat", "pages_total"), ("cpulist", "cpus")]
)
def test_broken_file_costs_only_its_series(nodes, settings, name, lost):
    path = nodes / "sys/devices/system/node/node1" / name
    whole = collect(Numa(settings))
    path.write_bytes(b"\xff\x00 nonsense")
    found = collect(Numa(settings), problem=f"node1/{name}")
    gone = set(whole) - set(found)
    assert gone and {(series, "1" in labels) for series, labels in gone} == {(f"goodput_numa_{lost}", True)}
    path.unlink()
    assert set(collect(Numa(settings))) == set(found)
    path.mkdir()
    assert set(collect(Numa(settings), problem=name)) == set(found)


def test_nodes_are_bounded(tree, settings):
    for node in range(2 * NODES_MAX):
        write(tree, {f"sys/devices/system/node/node{node}/cpulist": "0\n"})
    assert len(of(collect(Numa(settings)), "goodput_numa_cpus")) == NODES_MAX


def test_no_tree_is_no_data(tmp_path):
    with pytest.raises(NoData):
        Numa(Settings(directory="", sysfs=str(tmp_path))).collect(Families("node"))


def test_this_machine():
    if not os.path.exists("/sys/devices/system/node/node0/cpulist"):
        pytest.skip("this kernel has no NUMA nodes in sysfs")
    found = collect(Numa(Settings(directory="")))
    assert sum(of(found, "goodput_numa_cpus").values()) == os.cpu_count()


@pytest.mark.parametrize(
    "text, cpus",
    [("", []), ("\n", []), ("0", [0]), ("0-3,8\n", [0, 1, 2, 3, 8]), ("65535", [65535]), ("5,5", [5])],
)
def test_lists_of_processors(text, cpus):
    mask = collector.parse_cpus(text)
    assert [cpu for cpu in range(65_536) if mask >> cpu & 1] == cpus


@pytest.mark.parametrize("text", ["3-1", "65536", "-1", "1-", "1,,2", "a", "1-2-3", "0-99999999999999999999"])
def test_malformed_processor_lists_raise(text):
    with pytest.raises(ParseError):
        collector.parse_cpus(text)


@pytest.mark.parametrize("parse", [collector.parse_cpus, collector.parse_memory, collector.parse_numastat])
def test_any_text_parses_or_raises(parse):
    words = st.sampled_from(
        ["Node", "0", "MemTotal:", "kB", "numa_hit", "1-2", ",", "-", "\n", " ", "1" * 30]
    )

    @given(st.one_of(st.text(), st.lists(words).map(" ".join), st.lists(words).map("".join)))
    def run(text):
        parse_or_raise(parse, text)

    run()
