"""Whatever drivers and pages say: nothing is raised, sums close, and nothing grows without bound."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from goodput_exporters.collectors.gpu_phases import phase_attribution
from goodput_exporters.collectors.gpu_phases.activity_model import ActivityModel
from goodput_exporters.collectors.gpu_phases.phase_attribution import (
    GPUS_MAX,
    OTHER,
    PHASES_MAX,
    PhaseAttribution,
)
from goodput_exporters.gpu import sample as gpu_sample
from goodput_exporters.gpu.sample import Gpu, Sample
from goodput_exporters.system.ranks import RankKey, RankPhases

SECOND = 10**9
NAMES = ("activity/engine", "activity/utilization", "activity/sm", "energy", "power")
numbers = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(-1, 2),
    st.sampled_from([0.0, 1.0, 5e-324, 1e308, -1e308, 1e290, 2.0**63]),
)
moments = st.one_of(
    st.integers(-(2**63), 2**64 - 1), st.integers(0, 60 * SECOND), st.integers(0, 40), st.just(2**63)
)
gpus = st.builds(
    Gpu,
    st.sampled_from(["GPU-a", "GPU-b"]),
    readings=st.dictionaries(st.sampled_from(NAMES), numbers),
    pids=st.none() | st.lists(st.integers(0, 3), max_size=3),
    lost=st.booleans(),
)
taken = st.builds(Sample, st.sampled_from(["nvml", "dcgm"]), moments, st.lists(gpus, max_size=4))
phase_names = st.lists(st.sampled_from(["none", "loader", "forward", "idle", "other", "é", ""]), unique=True)


@st.composite
def ranks(draw) -> list[RankPhases]:
    found = []
    for number in draw(st.sets(st.integers(0, 3))):
        phases = tuple(draw(phase_names))
        totals = tuple(draw(st.lists(st.integers(-5, 2**64) | st.integers(0, 60 * SECOND), max_size=8)))
        at = draw(st.none() | st.integers(0, 5))
        uuid = draw(st.sampled_from(["", "GPU-a", "GPU-b"]))
        found.append(
            RankPhases(
                RankKey("r", number, 1, 9, 5), uuid, number, phases, frozenset(phases[1:3]), totals, at
            )
        )
    return found


@settings(max_examples=120)
@given(st.lists(st.tuples(taken, ranks()), max_size=12))
def test_sums_close_for_any_history(history):
    attribution = PhaseAttribution()
    for sample, here in history:
        gpu_sample.check(sample)
        before = {uuid: _sums(gpu_totals) for uuid, gpu_totals in attribution.gpus.items()}
        was = {uuid: gpu_totals.sampled_ns for uuid, gpu_totals in attribution.gpus.items()}
        attribution.add_sample(sample, here)
        for uuid, gpu_totals in attribution.gpus.items():
            covered, active, energy = (
                now - then for now, then in zip(_sums(gpu_totals), before.get(uuid, (0, 0, 0)), strict=True)
            )
            assert covered in (0, sample.monotonic_ns - was.get(uuid, 0))
            assert covered <= phase_attribution.COVERED_NS_MAX
            assert 0 <= active <= len(NAMES) * covered
            assert 0 <= energy <= 2e12 * (covered / 1e9 + 1)
    for gpu_totals in attribution.gpus.values():
        for parts in gpu_totals.active_ns.values():
            assert all(0 <= ns <= gpu_totals.covered_ns[phase] for phase, ns in parts.items())
        assert 0 <= gpu_totals.mixed_ns <= sum(gpu_totals.covered_ns.values())
    for hardware in attribution.ranks.values():
        assert 0 <= hardware.idle_ns <= hardware.compute_ns and hardware.energy_uj >= 0


def _sums(gpu_totals) -> tuple[int, int, int]:
    active = sum(sum(parts.values()) for parts in gpu_totals.active_ns.values())
    return sum(gpu_totals.covered_ns.values()), active, sum(gpu_totals.energy_uj.values())


@pytest.mark.parametrize("wrong", [2**63, 5 * 3600 * SECOND, -(2**63)])
def test_wrong_sample_time_costs_two_windows(wrong):
    attribution = PhaseAttribution()
    for at in (0, SECOND, wrong, 3 * SECOND, 4 * SECOND, 5 * SECOND):
        attribution.add_sample(Sample("nvml", at, [Gpu("GPU-a")]), [])
    assert sum(attribution.gpus["GPU-a"].covered_ns.values()) == 3 * SECOND


@pytest.mark.parametrize("name", ["energy", "power"])
def test_unassignable_sample_is_skipped(name):
    attribution = PhaseAttribution()
    given = [100.0, 1e308, 200.0, 300.0] if name == "energy" else [0.0, 1e308, 100.0]
    for second, value in enumerate(given):
        attribution.add_sample(Sample("nvml", second * SECOND, [Gpu("GPU-a", readings={name: value})]), [])
    assert attribution.gpus["GPU-a"].energy_uj == {"idle": 100_000_000}
    assert sum(attribution.gpus["GPU-a"].covered_ns.values()) == (len(given) - 1) * SECOND


def test_phases_of_new_runs_are_bounded():
    """Each run has names of its own; without a bound a sample takes minutes after thirty of them."""
    attribution, began = PhaseAttribution(), time.process_time()
    for run in range(40):
        names = tuple(f"p{run}.{i}" for i in range(27))
        for second in range(3):
            totals = tuple([second * SECOND // 27] * 27)
            here = [
                RankPhases(RankKey(f"r{run}", n, 1, n, 5), "GPU-a", n, names, frozenset(), totals)
                for n in (1, 2)
            ]
            at = (3 * run + second) * SECOND
            attribution.add_sample(Sample("nvml", at, [Gpu("GPU-a", readings={"activity/sm": 0.5})]), here)
    gpu_totals = attribution.gpus["GPU-a"]
    assert (
        len(gpu_totals.covered_ns) == len(gpu_totals.model._products) == PHASES_MAX
        and OTHER in gpu_totals.covered_ns
    )
    assert "p0.0" in gpu_totals.covered_ns and "p39.0" not in gpu_totals.covered_ns
    # Of each run's first sample, it is not known what part was its own.
    assert sum(gpu_totals.covered_ns.values()) == 40 * 2 * SECOND
    assert sum(gpu_totals.active_ns["sm"].values()) == 40 * SECOND
    assert time.process_time() - began < 10


def test_gpus_are_bounded():
    attribution = PhaseAttribution()
    for at in range(4):
        attribution.add_sample(Sample("nvml", at, [Gpu(f"GPU-{at}-{i}") for i in range(256)]), [])
    assert len(attribution.gpus) == GPUS_MAX and "GPU-0-0" in attribution.gpus


@settings(max_examples=50)
@given(
    st.lists(
        st.tuples(
            st.dictionaries(st.integers(0, 9), st.floats(5e-324, 1), min_size=1, max_size=6),
            st.dictionaries(st.sampled_from(["sm", "energy"]), st.floats(0, 1e15), min_size=1),
            st.integers(1, phase_attribution.COVERED_NS_MAX),
        ),
        min_size=1,
        max_size=30,
    )
)
def test_model_solution_is_always_finite(samples):
    rates = ActivityModel()
    for shares, means, spent_ns in samples:
        whole = sum(shares.values())
        phases = [f"p{i}" for i in shares]
        rows = rates.learn(phases, [share / whole for share in shares.values()], means, spent_ns)
        assert len(set(rows)) == len(phases)
        for unit, mean in means.items():
            assert all(abs(rate) < 1e24 for rate in rates.rates(unit, range(10))), mean
