"""Activity and energy by phase: sums that close, hand-worked cases, and what mixtures teach."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goodput_exporters.collectors.gpu_phases.phase_attribution import (
    COVERED_NS_MAX,
    NO_RANK,
    PhaseAttribution,
    apportion,
)
from goodput_exporters.gpu.sample import Gpu, Sample
from goodput_exporters.system.ranks import RankKey, RankPhases

SECOND = 10**9
PHASES = ("none", "loader", "forward", "backward")
COMPUTE = frozenset({"forward", "backward"})


def key(rank: int = 0, pid: int = 100) -> RankKey:
    return RankKey("r", rank, 1, pid, 5)


def rank(totals, number: int = 0, gpu: str = "GPU-a", pid: int = 100) -> RankPhases:
    return RankPhases(key(number, pid), gpu, pid, PHASES, COMPUTE, tuple(totals))


def sample(at_ns: int, gpu: str = "GPU-a", driver: str = "nvml", pids=None, lost=False, **readings) -> Sample:
    named = {
        f"activity/{name}" if name not in ("energy", "power") else name: v for name, v in readings.items()
    }
    return Sample(driver, at_ns, [Gpu(gpu, readings=named, pids=pids, lost=lost)])


@given(
    st.lists(st.tuples(st.floats(0, 1e18), st.integers(0, 10**15)), min_size=1, max_size=12),
    st.integers(0, 10**15),
)
def test_parts_sum_to_amount_within_caps(given, amount):
    weights, caps = [weight for weight, _ in given], [cap for _, cap in given]
    parts = apportion(amount, weights, caps)
    assert sum(parts) == min(amount, sum(caps))
    assert all(0 <= part <= cap for part, cap in zip(parts, caps, strict=True))
    free = apportion(amount, weights)
    assert sum(free) == amount and min(free) >= 0


def test_excess_over_cap_goes_to_others():
    assert apportion(10, [1, 1, 2], [2, 9, 9]) in ([2, 2, 6], [2, 3, 5])
    assert apportion(10, [1, 0], [4, 9]) == [4, 6]
    assert apportion(7, [0, 0], [5, 5]) in ([5, 2], [4, 3], [3, 4])


def test_sample_within_one_phase():
    attribution = PhaseAttribution()
    attribution.add_sample(sample(0, sm=0.9, energy=1000.0), [rank([0, 0, 0, 0])])
    attribution.add_sample(
        sample(SECOND, sm=0.5, tensor=0.25, engine=0.75, energy=1300.5), [rank([0, 0, 0, SECOND])]
    )
    gpu_totals = attribution.gpus["GPU-a"]
    assert gpu_totals.covered_ns == {"backward": SECOND} and gpu_totals.mixed_ns == 0
    assert gpu_totals.active_ns == {
        "sm": {"backward": SECOND // 2},
        "tensor": {"backward": SECOND // 4},
        "engine": {"backward": 3 * SECOND // 4},
    }
    assert gpu_totals.energy_uj == {"backward": 300_500_000}
    assert attribution.ranks[key()].as_live_fields() == {
        "compute_ns": SECOND,
        "idle_ns": SECOND // 4,
        "energy_mj": 300_500,
    }


def test_gpu_without_rank_is_idle():
    attribution = PhaseAttribution()
    for second in range(3):
        attribution.add_sample(sample(second * SECOND, utilization=0.0, power=70.0), [])
    gpu_totals = attribution.gpus["GPU-a"]
    assert gpu_totals.covered_ns == {NO_RANK: 2 * SECOND} and gpu_totals.energy_uj == {NO_RANK: 140_000_000}
    assert gpu_totals.active_ns == {"utilization": {NO_RANK: 0}} and not attribution.ranks


def test_mixed_sample_is_split_by_time_at_first():
    attribution = PhaseAttribution()
    attribution.add_sample(sample(0, engine=0.0), [rank([0, 0, 0, 0])])
    quarter = SECOND // 4
    attribution.add_sample(sample(SECOND, engine=0.5), [rank([0, 3 * quarter, quarter, 0])])
    gpu_totals = attribution.gpus["GPU-a"]
    assert gpu_totals.mixed_ns == SECOND
    halves = {"loader": 3 * quarter // 2, "forward": quarter // 2}
    assert gpu_totals.active_ns["engine"] == pytest.approx(halves, abs=2)
    # From now on the loader is known to do nothing and forward everything.
    for second in range(2, 60):
        before = attribution.gpus["GPU-a"].rank_totals_ns[key()]
        grown = list(before)
        grown[1 if second % 2 else 2] += SECOND
        attribution.add_sample(sample(second * SECOND, engine=0.0 if second % 2 else 1.0), [rank(grown)])
    active, before = dict(gpu_totals.active_ns["engine"]), list(gpu_totals.rank_totals_ns[key()])
    before[1], before[2] = before[1] + 3 * quarter, before[2] + quarter
    attribution.add_sample(sample(60 * SECOND, engine=0.25), [rank(before)])
    learned = gpu_totals.active_ns["engine"]["forward"] - active["forward"]
    assert 0.9 * quarter < learned <= quarter


@pytest.mark.parametrize("seed", range(4))
def test_mixed_samples_train_the_model(seed):
    """The truth is planted per phase; samples are as long as two steps or so, and steps vary as real ones do."""
    chance = random.Random(seed)
    truth = {"none": 0.3, "loader": 0.02, "forward": 0.7, "backward": 0.95}
    attribution, totals, at, active = PhaseAttribution(), [0, 0, 0, 0], 0, dict.fromkeys(PHASES, 0.0)
    attribution.add_sample(sample(0, engine=0.0), [rank(totals)])
    for _ in range(2000):
        lengths = [chance.randrange(1, 40), chance.choice((5, 5, 5, 400)), 200, chance.randrange(300, 500)]
        lengths = [ns * 10**6 for ns in lengths]
        totals = [total + ns for total, ns in zip(totals, lengths, strict=True)]
        at += sum(lengths)
        busy = sum(truth[phase] * ns for phase, ns in zip(PHASES, lengths, strict=True))
        for phase, ns in zip(PHASES, lengths, strict=True):
            active[phase] += truth[phase] * ns
        attribution.add_sample(sample(at, engine=busy / sum(lengths)), [rank(totals)])
    gpu_totals = attribution.gpus["GPU-a"]
    assert sum(gpu_totals.covered_ns.values()) == at and gpu_totals.covered_ns == dict(
        zip(PHASES, totals, strict=True)
    )
    found = {phase: ns / gpu_totals.covered_ns[phase] for phase, ns in gpu_totals.active_ns["engine"].items()}
    assert sum(gpu_totals.active_ns["engine"].values()) == pytest.approx(sum(active.values()), abs=2000)
    # By time alone all would be near the mean, 0.7 or so.
    assert found["loader"] < 0.1 and found["backward"] > 0.85, found
    assert found["forward"] == pytest.approx(0.7, abs=0.1), found
    hardware = attribution.ranks[key()]
    compute = totals[2] + totals[3]
    idle = compute - active["forward"] - active["backward"]
    assert hardware.compute_ns == compute and hardware.idle_ns == pytest.approx(idle, rel=0.25)


def test_two_ranks_share_a_gpu_equally():
    attribution = PhaseAttribution()
    ranks = [rank([0, 0, 0, 0], gpu=""), rank([0, 0, 0, 0], 1, "", 101)]
    attribution.add_sample(sample(0, engine=0.5, pids=[100, 101, 7]), ranks)
    ranks = [rank([0, 0, SECOND, 0], gpu=""), rank([0, SECOND, 0, 0], 1, "", 101)]
    attribution.add_sample(sample(SECOND, engine=0.5, power=100.0), ranks)
    gpu_totals = attribution.gpus["GPU-a"]
    assert gpu_totals.covered_ns == {"forward": SECOND // 2, "loader": SECOND // 2}
    assert attribution.ranks[key(0)].compute_ns == SECOND and attribution.ranks[key(1, 101)].compute_ns == 0
    assert attribution.ranks[key(0)].energy_uj == attribution.ranks[key(1, 101)].energy_uj == 50_000_000


def test_unknown_time_is_not_covered():
    attribution = PhaseAttribution()
    attribution.add_sample(sample(0, engine=1.0), [])
    # A rank that came in between, and a sample after a long silence.
    attribution.add_sample(sample(SECOND, engine=1.0), [rank([0, 0, 9 * SECOND, 0])])
    attribution.add_sample(sample(2 * SECOND + COVERED_NS_MAX, engine=1.0), [rank([0, 0, 9 * SECOND, 0])])
    assert attribution.gpus["GPU-a"].covered_ns == {} and not attribution.ranks
    attribution.add_sample(sample(3 * SECOND + COVERED_NS_MAX), [rank([0, 0, 10 * SECOND, 0])])
    assert (
        attribution.gpus["GPU-a"].covered_ns == {"forward": SECOND}
        and not attribution.gpus["GPU-a"].active_ns
    )


def test_lost_restarted_and_doubly_known_gpu():
    attribution = PhaseAttribution()
    attribution.add_sample(sample(0, energy=5000.0, power=10.0), [])
    attribution.add_sample(sample(SECOND, lost=True), [])
    attribution.add_sample(sample(SECOND + 1, driver="dcgm", power=500.0), [])  # nvml is followed
    attribution.add_sample(sample(2 * SECOND, energy=1.0, power=10.0), [])  # The counter began anew.
    assert attribution.gpus["GPU-a"].energy_uj == {NO_RANK: 20_000_000}
    attribution.add_sample(sample(9 * SECOND, driver="dcgm", power=500.0), [])  # nvml has been silent
    attribution.add_sample(sample(10 * SECOND, driver="dcgm", power=500.0), [])
    assert attribution.gpus["GPU-a"].energy_uj == {NO_RANK: 520_000_000}
    attribution.ranks[key()] = None
    attribution.ranks.pop(key())
    assert not attribution.ranks
