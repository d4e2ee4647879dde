"""The device clock on a real device: kernels of known length, waits that it feels and waits that it does not.

Skipped where there is no NVIDIA or AMD device. What is expected is measured here with events of the test's own. Lengths
are some milliseconds, so that launches (some microseconds) are within the tolerance of 5 % of a step.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time

import pytest
from support.sdk import sdk_process
from support.sdk.checks import check_records
from support.sdk.device import identity_at, split

from goodput.rank_page import page
from goodput.rank_page.reader import Reader
from goodput.sdk.recorder.phase import Phase
from goodput.sdk.recorder.recorder import Recorder
from goodput.sdk.recorder.steps import Step

pytestmark = pytest.mark.gpu
NEAR = 0.05


@pytest.fixture(scope="module")
def torch():
    """PyTorch with a device; importing it is not cheap, so first see whether there can be one."""
    if not (os.path.exists("/dev/nvidiactl") or os.path.exists("/dev/kfd")):
        pytest.skip("no GPU here")
    if importlib.util.find_spec("torch") is None:
        pytest.skip("no PyTorch here")
    import torch

    if not torch.cuda.is_available():
        pytest.skip("torch.cuda is not available")
    torch.zeros(1, device="cuda")
    yield torch
    torch.cuda.set_sync_debug_mode("default")


@pytest.fixture(scope="module")
def sleep(torch):
    """sleep(ms) queues a kernel that takes so long."""

    def measured(cycles: int) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        torch.cuda._sleep(cycles)
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)

    measured(1_000_000)  # The first one wakes the device up.
    cycles = 20_000_000
    per_ms = cycles / min(measured(cycles) for _ in range(3))
    return lambda ms: torch.cuda._sleep(int(ms * per_ms))


class Trainer:
    """A recorder on a page of its own in this process."""

    def __init__(self, directory, torch):
        from goodput.sdk.device.torch_events import device_clock

        os.makedirs(directory, exist_ok=True)
        now = time.perf_counter_ns()
        self.torch, self.writer = torch, page.Writer(str(directory), identity_at(now))
        self.recorder = Recorder()
        self.recorder.open(self.writer.words, now, self.writer.fd)
        self.recorder.used.extend(range(1, len(page.PHASES)))
        self.phases = {name: Phase(self.recorder, name, i) for i, name in enumerate(page.PHASES) if i}
        self.clock = device_clock(self.recorder, torch)

    def phase(self, name: str) -> Phase:
        return self.phases[name]

    def step(self) -> Step:
        return Step(self.recorder, None, 0)

    def shares(self, skip: int = 3) -> dict[str, float]:
        """Shares of the steps' time by phase, after the first ones; all but the last are on the device's clock."""
        self.torch.cuda.synchronize()
        self.recorder.end(time.perf_counter_ns(), "finished")
        with Reader(self.writer.path) as reader:
            self.snapshot = snapshot = reader.snapshot()
        check_records(snapshot)
        assert snapshot.device_state == "active" and snapshot.drops["error"] == 0, self.clock.error
        pairs = list(zip(snapshot.steps[skip:], snapshot.steps[skip - 1 :], strict=False))
        found: dict[str, int] = {}
        for record, before in pairs:
            for name, ns in split(record, before).items():
                found[name] = found.get(name, 0) + ns
        whole = sum(found.values())
        assert snapshot.steps[-1].device_ns - snapshot.steps[skip - 1].device_ns == whole
        return {name: ns / whole for name, ns in found.items()}


@pytest.fixture
def trainer(directory, torch):
    torch.cuda.synchronize()
    made = Trainer(directory, torch)
    yield made
    torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    made.writer.close()


def near(value: float):
    return pytest.approx(value, abs=NEAR)


def test_a_hidden_loader_costs_nothing_and_nothing_waits(trainer, torch, sleep):
    torch.cuda.set_sync_debug_mode("error")
    began = time.perf_counter()
    for _ in range(20):
        with trainer.step():
            with trainer.phase("loader"):
                time.sleep(0.003)
            with trainer.phase("forward"):
                sleep(5)
            with trainer.phase("backward"):
                sleep(10)
    host_seconds = time.perf_counter() - began
    torch.cuda.set_sync_debug_mode("default")
    assert host_seconds < 0.2, "the device needs 0.3 s, and the loop did not wait for it"
    shares = trainer.shares()
    assert shares.get("loader", 0) < 0.01
    assert shares["forward"] == near(1 / 3) and shares["backward"] == near(2 / 3)


def test_a_slow_loader_is_exposed_less_what_was_queued(trainer, sleep):
    for _ in range(12):
        with trainer.step():
            with trainer.phase("loader"):
                time.sleep(0.02)
            with trainer.phase("forward"):
                sleep(5)
    # The kernel runs while the next batch is awaited.
    shares = trainer.shares()
    assert shares["forward"] == near(0.25) and shares["loader"] == near(0.75)


def test_copies(trainer, torch, sleep):
    source = torch.empty(1 << 27, dtype=torch.uint8, pin_memory=True)
    target = torch.empty_like(source, device="cuda")
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(2):
        begin.record()
        target.copy_(source, non_blocking=True)
        end.record()
        end.synchronize()
    copy_ms = begin.elapsed_time(end)
    for _ in range(12):
        with trainer.step():
            with trainer.phase("h2d"):
                target.copy_(source, non_blocking=True)
            with trainer.phase("forward"):
                sleep(8)
    assert trainer.shares()["h2d"] == near(copy_ms / (copy_ms + 8))


@pytest.mark.parametrize("hidden", [False, True])
def test_a_wait_for_a_side_stream(trainer, torch, sleep, hidden):
    compute, side = torch.cuda.current_stream(), torch.cuda.Stream()
    for _ in range(12):
        with trainer.step():
            if hidden:
                side.wait_stream(compute)
            with trainer.phase("backward"):
                sleep(8)
            if not hidden:
                side.wait_stream(compute)
            with torch.cuda.stream(side), trainer.phase("optimizer"):  # Boundaries that are not ours to take.
                sleep(4)
            with trainer.phase("communication"):
                compute.wait_stream(side)
    shares = trainer.shares()
    assert shares.get("communication", 0) == near(0 if hidden else 1 / 3)
    assert shares.get("optimizer", 0) < 0.01


def test_graphs_are_captured_and_replayed_undisturbed(trainer, torch):
    value = torch.ones(1024, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            value * 2 + 1
    torch.cuda.current_stream().wait_stream(side)
    graph, whole = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with trainer.step(), trainer.phase("compile"), torch.cuda.graph(graph), trainer.phase("forward"):
        result = value * 2 + 1
    with torch.cuda.graph(whole), trainer.step(), trainer.phase("forward"):
        other = value * 3
    for i in range(30):
        with trainer.step(), trainer.phase("forward"):
            value.fill_(i)
            graph.replay()
            whole.replay()
    torch.cuda.synchronize()
    assert result[0].item() == 2 * 29 + 1 and other[0].item() == 3 * 29
    # Launches take the host longer than these kernels take the device, and those of events are outside of the phase.
    assert trainer.shares(skip=8)["forward"] > 0.3


def test_a_loop_on_another_stream_is_followed(trainer, torch, sleep):
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(40):
            with trainer.step(), trainer.phase("forward"):
                sleep(1)
        shares = trainer.shares(skip=25)
    assert shares["forward"] > 0.9


def test_its_own_cost(trainer, torch):
    """Some microseconds a boundary, by its own measure and by the clock."""
    value = torch.ones(8, device="cuda")

    def loop(steps: int) -> float:
        torch.cuda.synchronize()
        began = time.perf_counter_ns()
        for _ in range(steps):
            with trainer.step():
                for name in ("h2d", "forward", "backward", "optimizer"):
                    with trainer.phase(name):
                        value.add_(1)
        return (time.perf_counter_ns() - began) / steps

    loop(100)
    before = trainer.clock.cost_ns
    with_ns = min(loop(100) for _ in range(5))
    own_ns = (trainer.clock.cost_ns - before) / 500
    trainer.recorder.device = None
    bare_ns = min(loop(100) for _ in range(5))
    print(f"step {bare_ns:.0f} ns, with the device clock {with_ns:.0f} ns, its own figure {own_ns:.0f} ns")
    assert with_ns - bare_ns < 200_000 and own_ns < 200_000


def test_device_name_and_uuid(torch):
    from goodput.sdk.device.torch_events import describe

    found = describe(torch)
    assert found["device"] == torch.cuda.get_device_name() and found["devices"] == 1
    if torch.version.cuda and "device_uuid" in found:
        assert found["device_uuid"].startswith("GPU-")


def test_nothing_is_initialised_before_the_training_does(torch, directory):
    code = """
import torch
from goodput.rank_page import page
from goodput.sdk.device.torch_events import describe, device_clock
recorder = goodput._session.recorder
goodput.start(run="d")
clock = device_clock(recorder, torch)
assert clock is not None and describe(torch) == {}
for i in goodput.steps(range(8)):
    if i == 3:
        assert not torch.cuda.is_initialized()
        torch.zeros(1, device="cuda")
    work()
emit(recorder.words[page.W_DEVICE_STATE])
"""
    done = subprocess.run(
        [sys.executable, "-c", sdk_process.PREAMBLE + code],
        env={**os.environ, "GOODPUT_DIR": str(directory), "PYTHONPATH": sdk_process.SOURCE},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == page.DEVICE_STATES.index("active")
