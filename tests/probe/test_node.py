"""What a machine can do: parts of the probe, and the command on one node and under a launcher."""

import errno
import itertools
import json
import os
import socket
import time
from pathlib import Path

import pytest
from support.forks import server_with
from support.installed import need
from support.paths import SUPPORT

from goodput.flops import cpu_peak
from goodput.probe import child, copies, gemm, kept, storage
from goodput.probe.figure import Figure, rate_of
from goodput.probe.text import render, unit

COMMAND = str(SUPPORT / "probe" / "command.py")


def test_rate_is_of_the_median_time():
    rate, spread = rate_of(12.0, [1.0, 2.0, 2.0, 3.0, 100.0])
    assert rate == 6.0
    # Quartiles of the five: 1.5 and 51.5.
    assert spread == pytest.approx((51.5 - 1.5) / 2 / 2)
    assert rate_of(12.0, [2.0, 4.0]) == (4.0, None)


@pytest.fixture
def one_thread():
    """Threads of PyTorch that share too few cores spin while they wait for each other."""
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.alone
def test_gemm_agrees_with_a_direct_measurement(tmp_path, monkeypatch, one_thread):
    """The best of each, in turn: a machine that others use slows both down at times, and neither always.

    Beside processes that keep all cores busy it takes a while until a product has one for itself.
    """
    torch = pytest.importorskip("torch")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cpu_peak, "SECONDS", 0.2)
    device = cpu_peak.device_name(1)
    probed, direct, end = 0.0, 1.0, time.monotonic() + 90
    while abs(probed / direct - 1) >= 0.05 and time.monotonic() < end:
        probed = max(probed, cpu_peak.measure(device, "fp32") or 0.0)
        direct = max(direct, directly(torch))
    assert probed == pytest.approx(direct, rel=0.05)
    assert cpu_peak.known_peak(device, "fp32", torch.__version__) == probed


@pytest.mark.parametrize(
    "measured, rate, note",
    [
        ([None, 300.0, 270.0, 200.0, 295.0], 300.0, ""),  # until the two best agree
        ([300.0, 299.0, 298.0], 300.0, ""),
        ([100.0, 200.0, 300.0, 400.0, 500.0, 600.0], 600.0, "other processes use the CPU: it may reach more"),
        ([None] * 6, None, "other processes use the CPU"),
    ],
)
def test_busy_cpu_is_measured_again(monkeypatch, measured, rate, note):
    left, now = iter(measured), itertools.count()
    # Each look at the clock is a second later; measurements end when the time or the list is over.
    monkeypatch.setattr(gemm, "BUSY_SECONDS_MAX", len(measured) + 0.5)
    monkeypatch.setattr(gemm.time, "monotonic", lambda: float(next(now)))
    monkeypatch.setattr(cpu_peak, "measure", lambda device, dtype: next(left))
    figure = gemm._cpu_figure("CPU, 2 threads", "fp32")
    assert (figure.value, figure.note, list(left)) == (rate, note, [])


class HostEvent:
    """A CUDA event on the host's clock."""

    def __init__(self, enable_timing: bool):
        assert enable_timing

    def record(self) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end) -> float:
        return (end.at - self.at) * 1e3


def test_products_of_a_gpu(monkeypatch, one_thread):
    """The code for GPUs on a CPU, with the host's clock as the device's."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "Event", HostEvent)
    monkeypatch.setattr(gemm, "GPU_SIZE", 128)
    monkeypatch.setattr(gemm, "GPU_SECONDS", 0.02)
    found = {
        dtype: gemm._gpu_figure(torch, torch.device("cpu"), "NVIDIA H100 80GB HBM3", dtype)
        for dtype in gemm.GPU_DTYPES
    }
    assert {dtype: figure.nominal for dtype, figure in found.items()}["bf16"] == 989.4e12
    for dtype in ("bf16", "tf32", "fp32", "fp64"):
        start = time.perf_counter()
        gemm._product(torch, torch.device("cpu"), dtype)()
        assert found[dtype].value > 2 * 128**3 / (time.perf_counter() - start) / 10
    # What a device cannot do is unknown, with the reason, and costs nothing else.
    monkeypatch.setattr(torch, "mm", lambda *_, **__: torch.ones(2) @ torch.ones(3))
    refused = gemm._gpu_figure(torch, torch.device("cpu"), "x", "bf16")
    assert refused.value is None and "inconsistent tensor size" in refused.note


def directly(torch) -> float:
    """FLOP/s of the fastest of some products of two matrices."""
    best = 0.0
    for size in (512, 1024, 2048):
        left, right = torch.randn(size, size), torch.randn(size, size)
        # As long as the probe measures.
        end = time.monotonic() + cpu_peak.SECONDS / 3
        while (start := time.perf_counter()) and time.monotonic() < end:
            left @ right
            best = max(best, 2 * size**3 / (time.perf_counter() - start))
    return best


def test_host_memory_counts_reads_and_writes(one_thread):
    need("torch")
    [found] = copies.host_memory(1 << 20, 0.02)
    assert found.name == "memory_host" and found.unit == "B/s" and found.value > 1e8
    assert found.device == "1 thread"


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(storage, "LARGE_BYTES", 16 << 20)
    monkeypatch.setattr(storage, "SMALL_FILES", 16)


def test_storage_leaves_nothing(tmp_path, small):
    found = {figure.name: figure for figure in storage.measure(str(tmp_path))}
    assert list(found) == ["storage_write", "storage_read", "small_files", "small_files_8_readers"]
    assert all(figure.value > 0 for figure in found.values())
    assert found["storage_read"].note in ("page cache bypassed", "page cache dropped")
    assert list(tmp_path.iterdir()) == []


def test_storage_that_cannot_be_written_is_read(tmp_path, small, monkeypatch):
    def refuse(**_):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(storage.tempfile, "TemporaryDirectory", refuse)
    with pytest.raises(ValueError, match="cannot be written to and has no file of 8 MiB"):
        storage.measure(str(tmp_path))
    (tmp_path / "large").write_bytes(bytes(9 << 20))
    for number in range(10):
        (tmp_path / f"{number}.jpg").write_bytes(bytes(1000))
    names = [figure.name for figure in storage.measure(str(tmp_path))]
    assert names == ["storage_read", "small_files", "small_files_8_readers"]


def test_file_system_without_direct_reads(tmp_path, monkeypatch):
    path, opened = tmp_path / "file", os.open
    path.write_bytes(bytes(9 << 20))

    def refuse(name, flags, *rest):
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return opened(name, flags, *rest)

    monkeypatch.setattr(storage.os, "open", refuse)
    assert storage.sequential(path).note == "page cache dropped"


def test_part_that_fails_costs_its_part_alone():
    assert child.run(sorted, [2, 1]) == [1, 2]
    with pytest.raises(child.PartError, match="ValueError: invalid literal"):
        child.run(int, "x")
    with pytest.raises(child.PartError, match="its process died"):
        child.run(os._exit, 3)
    with pytest.raises(child.PartError, match="no answer within 0 s"):
        child.run(time.sleep, 60, seconds_max=0.1)
    # The first would wait for the second.
    with pytest.raises(child.PartError, match="ValueError: invalid literal"):
        child.run_all([(time.sleep, (60,)), (int, ("x",))])


def test_command_measures_and_keeps(tmp_path):
    """In one thread; the all-reduce of two processes over gloo."""
    need("torch")
    environ = {"XDG_CACHE_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    options = ["--only", "memory", "allreduce", "--json"]
    [ended] = server_with("torch").run(([COMMAND, *options], environ), seconds=120)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    names = [figure["name"] for figure in found["figures"]]
    assert names == ["memory_host", "all_reduce_64KiB", "all_reduce_1MiB", "all_reduce_16MiB"]
    assert found["figures"][-1]["device"] == "2 ranks, gloo" and found["problems"] == []
    assert found["host"] == socket.gethostname()
    assert json.loads((tmp_path / "goodput" / "probe" / f"{found['host']}.json").read_text()) == found
    assert "measuring all-reduce over 2 ranks" in ended.stderr


def test_launched_ranks_print_one_probe(tmp_path):
    """As torchrun starts them: two ranks of this node."""
    need("torch")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environ = {"XDG_CACHE_HOME": str(tmp_path), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ranks = [{**environ, "WORLD_SIZE": "2", "RANK": rank, "LOCAL_RANK": rank} for rank in "01"]
    options = ["--only", "memory", "allreduce", "--json"]
    first, second = server_with("torch").run(*(([COMMAND, *options], rank) for rank in ranks), seconds=120)
    assert second.returncode == 0 and second.stdout == "", second.stderr
    [found] = json.loads(first.stdout)
    assert [figure["name"] for figure in found["figures"]][:2] == ["memory_host", "all_reduce_64KiB"]
    assert kept.parse(Path(tmp_path, "goodput", "probe", f"{found['host']}.json").read_text(), "it") == [
        found
    ]
    assert first.returncode == 0, first.stderr


def test_no_rank_closes_a_group_before_all_are_done(tmp_path):
    """Else the others' connections may break in their last call."""
    need("torch")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environ = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    script = str(SUPPORT / "probe" / "two_ranks.py")
    ended = server_with("torch").run(*(([script], {**environ, "RANK": rank}) for rank in "01"), seconds=120)
    assert [one.returncode for one in ended] == [0, 0], ended[0].stderr + ended[1].stderr
    times = [tuple(map(float, one.stdout.split())) for one in ended]
    assert max(done for done, _ in times) <= min(left for _, left in times)


def test_text_has_80_columns():
    figures = [
        Figure("gemm_bf16", 701e12, "FLOP/s", "NVIDIA H100 80GB HBM3", 7, 0.004, 989.4e12),
        Figure("h2d_pageable", 5.4321e9, "B/s", "NVIDIA H100 80GB HBM3", 7, 0.1),
        Figure("small_files_8_readers", 12_345.6, "1/s", note="page cache bypassed, 0.28 ms a file"),
        Figure("gemm_fp8", None, "FLOP/s", "x", 7, note="no fp8"),
    ]
    document = {
        "host": "n1",
        "cores": 96,
        "gpus": 8,
        "path": "/data/" + "x" * 90,
        "problems": ["storage: " + "y " * 60],
    }
    document["figures"] = [vars(figure) for figure in figures]
    peer = {**document, "host": "n2", "figures": [vars(figures[0]) | {"value": 1402e12}]}
    text = render(document, [document, peer])
    assert max(map(len, text.splitlines())) <= 80
    words = [line.split() for line in text.splitlines()]
    assert ["gemm_bf16", "[7]", "701", "TFLOP/s", "0%", "71%", "50%"] in words
    assert ["small_files_8_readers", "12,346", "/s", "[1]"] in words
    assert unit(999.0, "B/s") == "999 B/s" and unit(1.5e9, "B/s") == "1.5 GB/s"
