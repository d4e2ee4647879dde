"""Activity and energy by phase, from real rank pages and samples fed by hand."""

from __future__ import annotations

import random
import shutil

import pytest
from support.node.node_rank import PID, START_MONO_NS, START_UNIX_NS, Rank
from support.node.node_tree import samples

from goodput.metrics import Families
from goodput.wire import schema
from goodput_exporters.collector import NoData
from goodput_exporters.collectors.gpu_phases.collector import KEPT_SECONDS, GpuPhases
from goodput_exporters.collectors.gpu_phases.phase_attribution import COVERED_NS_MAX
from goodput_exporters.gpu.sample import Gpu, Sample
from goodput_exporters.system.ranks import rank_key

SECOND, MS = 10**9, 10**6
SINCE = {"since_ns": START_UNIX_NS}  # when this agent began
PHASES = ("loader", "h2d", "forward", "backward", "optimizer", "communication")


@pytest.fixture
def phases(settings, ranks):
    found = GpuPhases(settings)
    found.ranks = ranks.now
    return found


def tell(phases, clock, driver: str = "nvml", lost: bool = False, **gpus: dict) -> None:
    """A sample of GPU_1={...} and so on, now."""
    records = [
        Gpu(
            name.replace("_", "-"),
            lost=lost,
            readings={
                key if key in ("energy", "power") else f"activity/{key}": v for key, v in given.items()
            },
        )
        for name, given in gpus.items()
    ]
    phases.add_sample(Sample(driver, clock.monotonic_ns(), records))


def series(phases) -> dict:
    """{(name without prefix, labels by name ...): value}"""
    families = Families("node")
    phases.collect(families)
    return {
        (name.removeprefix("goodput_gpu_"), *at): value for (name, at), value in samples(families).items()
    }


def summed(found: dict, name: str, gpu: str, unit: str | None = None) -> float:
    return sum(
        value for (of, *at), value in found.items() if of == name and at[0] == gpu and unit in (None, at[-1])
    )


@pytest.mark.parametrize("seed", range(3))
def test_phase_counters_sum_to_the_samples(tree, clock, ranks, phases, seed):
    """Two GPUs with a rank each, samples at odd times; the truth is summed beside it."""
    chance = random.Random(seed)
    pages = [Rank(tree / "pages", rank=rank, device_uuid=f"GPU-{rank + 1}") for rank in range(2)]
    ranks.poll()
    tell(phases, clock, GPU_1={"engine": 0.0, "energy": 500.0}, GPU_2={"sm": 0.0, "power": 100.0})
    active, joules, spent = [0.0, 0.0], 500.0, dict.fromkeys(PHASES, 0)
    for _ in range(200):
        seconds = chance.choice((0.1, 0.99, 1.0, 1.7, 6.0)) + chance.random() / 1000
        clock.seconds += seconds
        for rank in pages:
            while rank.now_ns < clock.monotonic_ns():
                left = clock.monotonic_ns() - rank.now_ns
                phase, ns = chance.choice(PHASES), min(left, chance.randrange(MS, SECOND))
                rank.spend({phase: ns})
                if rank is pages[0]:
                    spent[phase] += ns
        ratios = chance.random(), chance.random()
        joules += 300 * seconds
        tell(
            phases,
            clock,
            GPU_1={"engine": ratios[0], "energy": joules},
            GPU_2={"sm": ratios[1], "power": 100.0},
        )
        active = [sum_ + ratio * seconds for sum_, ratio in zip(active, ratios, strict=True)]
    found, whole = series(phases), clock.monotonic_ns() - START_MONO_NS
    for gpu in ("GPU-1", "GPU-2"):
        assert summed(found, "phase_seconds_total", gpu) == pytest.approx(whole / 1e9, abs=1e-6)
        assert 0 < found["phase_mixed_seconds_total", gpu] <= whole / 1e9
    for phase, ns in spent.items():
        assert found["phase_seconds_total", "GPU-1", phase] == pytest.approx(ns / 1e9, abs=1e-5)
    assert summed(found, "activity_seconds_total", "GPU-1", "engine") == pytest.approx(active[0], abs=1e-5)
    assert summed(found, "activity_seconds_total", "GPU-2", "sm") == pytest.approx(active[1], abs=1e-5)
    assert summed(found, "phase_energy_joules_total", "GPU-1") == pytest.approx(joules - 500, abs=1e-3)
    assert summed(found, "phase_energy_joules_total", "GPU-2") == pytest.approx(100 * whole / 1e9, abs=1e-2)
    for (name, *at), value in found.items():
        if name == "activity_seconds_total":
            assert 0 <= value <= found[("phase_seconds_total", *at[:2])] + 1e-9


def test_one_minute_in_one_phase_by_hand(tree, clock, ranks, phases):
    """Between samples of 1 s: forward from 10 s to 70 s at 30 %, the loader before at 5 %; 400 W and 80 W."""
    rank = Rank(tree / "pages")
    ranks.poll()
    joules = 0.0
    for second in range(71):
        clock.seconds = float(second)
        if second:
            phase, ratio, watts = ("loader", 0.05, 80) if second <= 10 else ("forward", 0.3, 400)
            rank.spend({phase: SECOND})
            joules += watts
        else:
            ratio = 0.0
        tell(phases, clock, GPU_1={"utilization": ratio, "energy": joules})
    assert series(phases) == pytest.approx({
        ("phase_seconds_total", "GPU-1", "loader"): 10.0,
        ("phase_seconds_total", "GPU-1", "forward"): 60.0,
        ("activity_seconds_total", "GPU-1", "loader", "utilization"): 0.5,
        ("activity_seconds_total", "GPU-1", "forward", "utilization"): 18.0,
        ("phase_energy_joules_total", "GPU-1", "loader"): 800.0,
        ("phase_energy_joules_total", "GPU-1", "forward"): 24_000.0,
        ("phase_mixed_seconds_total", "GPU-1"): 0.0,
    })  # fmt: skip
    (report,) = map(phases.with_gpu_totals, ranks.poll())
    # The last second waits until it is known that it was no hang.
    assert report.live.hardware == {
        "compute_ns": 59 * SECOND, "idle_ns": 59 * SECOND * 7 // 10, "energy_mj": 24_800_000, **SINCE,
        "busy_ppm": 300_000,
    }  # fmt: skip
    schema.check(report)


def test_present_figures_are_of_the_last_sample(tree, clock, ranks, phases):
    """Activity and power of a rank's GPU, for as long as samples come."""
    Rank(tree / "pages")
    ranks.poll()
    for second, busy in ((0, 0.0), (1, 0.25), (2, 0.5)):
        clock.seconds = float(second)
        gpu = {"utilization": busy, "power": 300.0 + second}
        tell(phases, clock, GPU_1=gpu)

    def present() -> dict:
        (report,) = map(phases.with_gpu_totals, ranks.poll())
        return {name: report.live.hardware.get(name) for name in ("busy_ppm", "power_mw")}

    assert present() == {"busy_ppm": 500_000, "power_mw": 302_000}
    clock.seconds += COVERED_NS_MAX / 1e9 + 1
    assert present() == {"busy_ppm": None, "power_mw": None}


def test_series_end_after_an_hour_without_samples(tree, clock, ranks, phases):
    with pytest.raises(NoData):
        series(phases)
    for second in range(3):
        clock.seconds = float(second)
        tell(phases, clock, GPU_1={"sm": 1.0}, GPU_2={"sm": 1.0})
    clock.seconds = KEPT_SECONDS
    tell(phases, clock, GPU_2={"sm": 1.0})
    tell(phases, clock, GPU_1={}, lost=True)
    assert {gpu for _, gpu, *_ in series(phases)} == {"GPU-1", "GPU-2"}
    clock.seconds = KEPT_SECONDS + 3
    tell(phases, clock, GPU_2={"sm": 1.0})
    tell(phases, clock, GPU_1={}, lost=True)  # It is known, and nothing comes of it.
    assert {gpu for _, gpu, *_ in series(phases)} == {"GPU-2"}


def test_series_end_without_any_driver(tree, clock, phases):
    for second in range(2):
        clock.seconds = float(second)
        tell(phases, clock, GPU_1={"sm": 1.0})
    assert series(phases)
    clock.seconds += KEPT_SECONDS + 1
    with pytest.raises(NoData):
        series(phases)


def test_each_rank_process_gets_its_own_totals(tree, clock, ranks, phases):
    """A rank dies and comes back as another process; its GPU's sums go on, each process has its own."""
    first = Rank(tree / "pages")

    def step(rank: Rank, seconds: int) -> None:
        for _ in range(seconds):
            clock.seconds += 1.0
            rank.step({"forward": SECOND})
            tell(phases, clock, GPU_1={"engine": 0.25, "power": 100.0})

    ranks.poll()
    tell(phases, clock, GPU_1={"engine": 0.25, "power": 100.0})
    step(first, 4)
    (before,) = map(phases.with_gpu_totals, ranks.poll())
    (tree / "proc" / str(PID) / "stat").unlink()
    again = PID + 1
    text = f"{again} (train) S " + "0 " * 18 + "888 0\n"
    (tree / "proc" / str(again)).mkdir()
    (tree / "proc" / str(again) / "stat").write_text(text)
    started = {"start_mono_ns": clock.monotonic_ns(), "start_unix_ns": clock.unix_ns()}
    second = Rank(tree / "pages", attempt=2, pid=again, pid_start_ticks=888, **started)
    dead, fresh = sorted(map(phases.with_gpu_totals, ranks.poll()), key=lambda one: one.identity.attempt)
    present = {"busy_ppm": 250_000, "power_mw": 100_000}
    assert dead.live.hardware == {
        "compute_ns": 3 * SECOND, "idle_ns": 3 * SECOND * 3 // 4, "energy_mj": 400_000, **SINCE,
    }  # fmt: skip
    assert before.live.hardware == {**dead.live.hardware, **present}
    assert fresh.live.hardware == {} and not dead.live.alive
    step(
        second, 3
    )  # The first sample meets a process that came in between: whose that time was is not known.
    (after,) = map(phases.with_gpu_totals, ranks.poll())
    assert after.identity.attempt == 2
    assert after.live.hardware == {
        "compute_ns": SECOND,
        "idle_ns": SECOND * 3 // 4,
        "energy_mj": 200_000,
        **SINCE,
        **present,
    }
    assert series(phases)["phase_seconds_total", "GPU-1", "forward"] == 6.0
    assert ("phase_seconds_total", "GPU-1", "idle") not in series(phases)
    assert phases.ranks_on("GPU-1") == [("r1", 0)] and phases.ranks_on("GPU-7") == []
    phases.forget(rank_key(dead.identity))
    assert (
        phases.with_gpu_totals(dead).live.hardware == dead.live.hardware
        and rank_key(dead.identity) not in phases._attribution.ranks
    )
    assert rank_key(after.identity) in phases._attribution.ranks


def test_hang_in_compute_phase_is_not_idle_compute(tree, clock, ranks, phases):
    """Ten seconds of work, half of it idle, then an hour in `forward` with nothing to run, then work again."""
    rank = Rank(tree / "pages")
    ranks.poll()

    def reported() -> dict[str, int]:
        (report,) = map(phases.with_gpu_totals, ranks.poll())
        return {
            name: value for name, value in report.live.hardware.items() if name not in (*SINCE, "busy_ppm")
        }

    def work(seconds: int) -> None:
        for _ in range(seconds):
            clock.seconds += 1
            rank.step({"forward": SECOND})
            tell(phases, clock, GPU_1={"engine": 0.5})

    tell(phases, clock, GPU_1={"engine": 0.5})
    work(10)
    before = reported()
    assert before == {"compute_ns": 9 * SECOND, "idle_ns": 9 * SECOND // 2}
    rank.enter("forward")
    for _ in range(3600):
        clock.seconds += 1
        tell(phases, clock, GPU_1={"engine": 0.0})
    assert reported() == before
    assert series(phases)["phase_seconds_total", "GPU-1", "forward"] == 3610
    rank.step({"forward": 3600 * SECOND})
    work(3)
    # Of the work around the hang nothing is counted that shared a sample's wait with it.
    assert reported() == {"compute_ns": 11 * SECOND, "idle_ns": 11 * SECOND // 2}


def test_without_ranks_all_time_is_idle(tree, settings, clock, ranks, phases):
    alone = GpuPhases(settings)  # It follows nobody.
    rank = Rank(tree / "pages")
    ranks.poll()
    for second in range(1, 5):
        for one in (alone, phases):
            tell(one, clock, GPU_1={"sm": 0.5})
        if second == 3:
            shutil.rmtree(tree / "pages")
        clock.seconds = float(second)
        rank.spend({"backward": SECOND})
    assert series(alone)["phase_seconds_total", "GPU-1", "idle"] == 3.0
    assert series(phases)["phase_seconds_total", "GPU-1", "backward"] == 3.0
