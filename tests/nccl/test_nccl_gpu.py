"""Real NCCL on a real GPU: what the plugin records, and who is named when a rank stops calling."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.paths import SUPPORT
from support.servers.servers import wait_until

from goodput.rank_page.reader import Reader
from goodput.trace.hangs.ras import ADDRESS, analyze_ras

pytestmark = pytest.mark.gpu
BUCKET_BYTES, STEPS = 4 * 2 * (1024 * 1024 + 1024), 40  # two layers in a bucket


@contextlib.contextmanager
def training(mode: str, directory: Path) -> Iterator[subprocess.Popen]:
    """Two ranks under `goodput run torchrun`, ended with their process group."""
    if not os.path.exists("/dev/nvidiactl") or importlib.util.find_spec("torch") is None:
        pytest.skip("no NVIDIA GPU, or no PyTorch, here")
    command = [
        sys.executable,
        "-m",
        "goodput",
        "run",
        "--name",
        "nccl",
        "--directory",
        str(directory / "pages"),
    ]
    command += [
        "--quiet",
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    command += [str(SUPPORT / "nccl" / "gpu_rank.py"), mode, str(directory)]
    environ = {**os.environ, "TORCH_FR_BUFFER_SIZE": "2000"}
    with open(directory / "log", "wb") as log:
        process = subprocess.Popen(command, env=environ, stdout=log, stderr=log, start_new_session=True)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def collectives(directory: Path, rank: int):
    with Reader(str(directory / "pages" / f"nccl.{rank}.1.nccl")) as reader:
        return reader.collectives()


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("ddp")
    with training("ddp", directory) as process:
        assert process.wait(240) == 0, (directory / "log").read_text()
    return directory


@pytest.mark.parametrize("rank", [0, 1])
def test_plugin_records_each_call(trained, rank):
    found = collectives(trained, rank)
    sums = {one.operation: one for one in found.sums}
    assert (found.dropped, found.lost) == (0, 0)
    reduced = sums["all_reduce"]
    # Four buckets a step; the barrier is an all_reduce of NCCL's.
    assert STEPS * 4 <= reduced.calls <= STEPS * 4 + 2
    assert reduced.bytes == pytest.approx(STEPS * 4 * BUCKET_BYTES, rel=1e-4)
    network = found.network[0]
    assert network.send_bytes >= reduced.bytes and network.receive_bytes >= reduced.bytes


@pytest.mark.parametrize("rank", [0, 1])
def test_device_time_is_that_of_the_kernels(trained, rank):
    events = json.loads((trained / f"trace{rank}.json").read_text())["traceEvents"]
    kernels = [each["dur"] for each in events if each.get("name", "").startswith("ncclDevKernel_AllReduce")]
    assert len(kernels) == 8 * 4
    reduced = next(one for one in collectives(trained, rank).sums if one.operation == "all_reduce")
    assert reduced.device_ns / reduced.calls / 1e3 == pytest.approx(sum(kernels) / len(kernels), rel=0.2)


def test_rank_that_stopped_is_named(tmp_path):
    with training("hang", tmp_path) as process:
        dumps = [tmp_path / f"flight{rank}" for rank in range(2)]
        wait_until(lambda: process.poll() is not None or all(map(Path.exists, dumps)), 180, "the dumps")
        assert process.poll() is None, (tmp_path / "log").read_text()
        (communicator,) = analyze_ras(ADDRESS, 1.0)["communicators"]
        opened = [record for record in collectives(tmp_path, 0).records if not record.exit_ns]
    assert communicator["kind"] == "behind" and [one["rank"] for one in communicator["behind"]] == [1]
    assert opened and {record.operation for record in opened} == {"all_reduce"}
    command = [sys.executable, "-m", "goodput", "analyze", "--flight", str(tmp_path)]
    for other in set(tmp_path.iterdir()) - set(dumps):
        if other.is_file():
            other.unlink()
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert "rank 1 has not come to all_reduce" in done.stdout, done.stdout + done.stderr


def test_report_says_where_the_time_passes(trained):
    """The host waits for next to none of it: most communication is on the device, in all-reduces."""
    command = [sys.executable, "-m", "goodput", "report", "--json", "--directory", str(trained / "pages")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found = json.loads(done.stdout)
    rows = {row["operation"]: row for row in found["collectives"]}
    exposed = sum(row["gpu_seconds"] or 0 for row in rows.values())
    assert 0.5 * exposed < rows["all_reduce"]["gpu_seconds"] <= rows["all_reduce"]["device_gpu_seconds"]
    assert rows["all_reduce"]["bus_bytes_per_second_min"] > 0
