"""What the links of a node carry at most to the other ranks of a group: by backend, by hand, unknown, read anew."""

import os

import pytest

from goodput.rank_page.collective_records import Group, runs_of
from goodput.wire.schema import Identity
from goodput_exporters.collectors.ranks.node_links import READ_NS, NodeLinks

GIGABIT = 125_000_000  # bytes a second


def identity(
    rank: int = 0, run: str = "r1", attempt: int = 1, device: str = "", devices: int = 1
) -> Identity:
    return Identity(run, rank, attempt, 16, "n0", 100 + rank, 0, device=device, devices=devices)


def group(ranks, backend: str = "nccl") -> Group:
    return Group("0", "", backend, len(list(ranks)), 0, tuple(runs_of(ranks)), 0, 0, 0)


@pytest.fixture
def sysfs(tmp_path):
    """Two ports of 400 Gb/s, one that is down; interfaces of 25 and 1 Gb/s, one without carrier, and loopback."""
    for device, state, rate in (
        ("mlx5_0", "4: ACTIVE", 400),
        ("mlx5_1", "4: ACTIVE", 400),
        ("mlx5_2", "1: DOWN", 10),
    ):
        write(tmp_path / f"class/infiniband/{device}/ports/1", state=state, rate=f"{rate} Gb/sec (4X NDR)")
    for device, carrier, speed in (("eth0", 1, 25_000), ("eth1", 1, 1000), ("eth2", 0, 100_000)):
        write(tmp_path / f"class/net/{device}", carrier=carrier, speed=speed)
        (tmp_path / f"class/net/{device}/device").mkdir()
    write(tmp_path / "class/net/lo", carrier=1, speed=-1)
    write(tmp_path / "class/net/veth0", carrier=1, speed=10_000)
    return tmp_path


def write(folder, **files) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        (folder / name).write_text(f"{value}\n")


def links_of(sysfs, local=(0, 1)) -> NodeLinks:
    links = NodeLinks(str(sysfs), lambda: 0)
    links.poll(identity(rank) for rank in local)
    return links


def test_rates_by_backend(sysfs):
    """All ports for NCCL, 2 x 400 Gb/s = 100 GB/s; the fastest interface for gloo, 25 Gb/s = 3.125 GB/s."""
    links = links_of(sysfs)
    assert links.of(identity(), group(range(4))) == (2, 800 * GIGABIT) == (2, 100 * 10**9)
    assert links.of(identity(), group(range(4), "gloo")) == (2, 25 * GIGABIT)
    assert links.of(identity(), group(range(4), "cpu:gloo,cuda:nccl")) == (2, 800 * GIGABIT)


def test_without_rdma_nccl_uses_all_interfaces_and_gloo_a_bond(sysfs):
    for device in ("mlx5_0", "mlx5_1"):
        write(sysfs / f"class/infiniband/{device}/ports/1", state="1: DOWN")
    assert links_of(sysfs).of(identity(), group(range(4))) == (2, 26 * GIGABIT)
    write(sysfs / "class/net/bond0", carrier=1, speed=50_000)
    (sysfs / "class/net/bond0/bonding").mkdir()
    assert links_of(sysfs).of(identity(), group(range(4), "gloo")) == (2, 50 * GIGABIT)


def test_virtual_functions_do_not_count(sysfs):
    for path in ("infiniband/mlx5_1", "net/eth1"):
        (sysfs / f"class/{path}/device/physfn").mkdir(parents=True)
    assert links_of(sysfs).of(identity(), group(range(4))) == (2, 400 * GIGABIT)


@pytest.mark.parametrize(
    "backend, path", [("nccl", "infiniband/mlx5_1/ports/1/rate"), ("gloo", "net/eth1/speed")]
)
def test_link_without_a_rate_makes_the_ceiling_unknown(sysfs, backend, path):
    (sysfs / "class" / path).write_text("-1\n" if backend == "gloo" else "?\n")
    assert links_of(sysfs).of(identity(), group(range(4), backend)) == (2, 0)


def test_no_links_are_unknown(tmp_path):
    assert links_of(tmp_path).of(identity(), group(range(4))) == (2, 0)


def test_ranks_of_the_node_are_counted(sysfs):
    """Of the same run and attempt, in groups of any shape; those of a group that is not known are not."""
    links = NodeLinks(str(sysfs), lambda: 0)
    others = [identity(4, run="r2"), identity(5, attempt=2)]
    links.poll([*(identity(rank) for rank in range(4)), *others])
    assert links.of(identity(), group([0, 4, 8, 12]))[0] == 1
    assert links.of(identity(), group([1, 3, 5, 7]))[0] == 2
    assert links.of(identity(), group([0, 3, 11]))[0] == 2
    assert links.of(identity(), group(range(4))) == (4, 0), "within the node"
    assert links.of(identity(), group(range(4))._replace(ranks=())) == (0, 0)
    assert links.of(identity(), group([8, 9])) == (0, 0)
    assert links.of(identity(), group([0])) == (1, 0)


def test_ranks_within_a_node_have_their_gpus_links():
    links = NodeLinks("/nonexistent", lambda: 0)
    links.poll(identity(rank) for rank in range(2))
    h100 = identity(device="NVIDIA H100 80GB HBM3")
    assert links.of(h100, group(range(2))) == (2, 450 * 10**9)
    for one, backend in (
        (h100, "gloo"),
        (identity(device="NVIDIA H100 PCIe"), "nccl"),
        (identity(device="NVIDIA H100 80GB HBM3", devices=8), "nccl"),
    ):
        assert links.of(one, group(range(2), backend)) == (2, 0)


def test_rates_are_read_anew_after_a_minute(sysfs):
    now = [0]
    links = NodeLinks(str(sysfs), lambda: now[0])
    links.poll([identity()])
    assert links.of(identity(), group(range(4))) == (1, 800 * GIGABIT)
    os.unlink(sysfs / "class/infiniband/mlx5_1/ports/1/state")
    now[0] = READ_NS - 1
    assert links.of(identity(), group(range(4)))[1] == 800 * GIGABIT
    now[0] = READ_NS
    assert links.of(identity(), group(range(4)))[1] == 400 * GIGABIT
