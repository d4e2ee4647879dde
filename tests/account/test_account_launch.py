"""The device idle inside compute, and measured energy: hand-worked, then for any figures that a report may hold."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.account.account_history import Process, assert_closes, ns, of_rank, run_of

from goodput.account import compute, document, figures
from goodput.account.states import INDEX, STATES
from goodput.causes import explain

LAUNCH, PRODUCTIVE = INDEX["launch"], INDEX["productive"]


def sampled(run, **by_rank):
    """The run, with hardware figures in seconds and joules for `rank_attempt`."""
    for name, (compute_s, idle_s, joules) in by_rank.items():
        rank, attempt = map(int, name.strip("r").split("_"))
        figures_of = {"compute_ns": ns(compute_s), "idle_ns": ns(idle_s), "energy_mj": round(1000 * joules)}
        run.attempts[rank, attempt].hardware = {key: value for key, value in figures_of.items() if value}
    return run


def one(**given) -> Process:
    """2 s of startup, 8 steps of 0.5 s loader and 1.5 s compute, 2 s of saving: 20 s."""
    given.setdefault("rank", 0)
    process = Process(**given).between(none=2).steps(8, loader=0.5, forward=0.5, backward=1)
    return process.between(checkpoint=2)


def test_idle_compute_is_launch():
    run = sampled(run_of(one().finished()), r0_1=(12, 3, 0))
    account = compute(run, ns(20))
    assert_closes(account)
    # All 12 s of compute were covered and the device idled in 3 of them.
    assert of_rank(account) == {"startup": 2, "loader": 4, "checkpoint": 2, "productive": 9, "launch": 3}
    found = document(account)
    assert found["basis"]["launch"] == "estimated"
    assert found["factors"]["step_efficiency"] == 9 / 16 and found["factors"]["goodput"] == 9 / 20


def test_only_sampled_compute_becomes_launch():
    run = sampled(run_of(one().finished()), r0_1=(4, 2, 0))
    # Half of the 4 s that were covered was idle; the other 8 s are unknown, so 2 of 12 s go.
    assert of_rank(compute(run, ns(20)))["launch"] == 2
    # More was covered than the clock of the phases saw as compute: the share is of what was covered.
    run = sampled(run_of(one().finished()), r0_1=(24, 6, 0))
    assert of_rank(compute(run, ns(20)))["launch"] == 3


def test_unsampled_launch_is_unknown():
    nothing = compute(run_of(one().finished()), ns(20))
    assert document(nothing)["basis"]["launch"] == "unknown"
    zero = compute(sampled(run_of(one().finished()), r0_1=(12, 0, 0)), ns(20))
    assert document(zero)["basis"]["launch"] == "estimated" and document(zero)["states"]["launch"] == 0
    assert of_rank(zero) == of_rank(nothing)


def test_compute_outside_kept_steps_is_no_launch():
    """10 steps of 2 s, half compute; the last 4 are lost with the second of the death, and 1 s lay between steps."""
    first = Process().steps(5, loader=1, forward=1).between(forward=1).steps(5, loader=1, forward=1)
    second = Process(attempt=2, start=25).resumed(5).steps(3, forward=2).finished()
    run = sampled(run_of(first.begun(forward=1).killed(), second), r0_1=(12, 6, 0), r0_2=(6, 0, 0))
    account = compute(run, ns(31))
    assert_closes(account)
    # Of 12 s of compute 6 are in kept steps, of which half was idle; the second attempt was measured and never idle.
    assert of_rank(account) == {
        "loader": 6, "productive": 3 + 6, "launch": 3, "unattributed": 1, "lost": 9, "down": 3,
    }  # fmt: skip
    assert account.restarts[0].lost_gpu_ns == ns(9)


def test_each_attempt_has_its_own_idle_share():
    run = run_of(one(devices=2).finished(), one(rank=1).finished())
    account = compute(sampled(run, r0_1=(12, 6, 0)), ns(20))
    assert_closes(account)
    assert [of_rank(account, rank).get("launch") for rank in (0, 1)] == [6, None]
    assert document(account)["states"]["launch"] == 12 and document(account)["basis"]["launch"] == "estimated"


def test_idle_beyond_compute_is_cut_and_counted():
    run = sampled(run_of(one().finished()), r0_1=(6, 9, 0))
    account = compute(run, ns(20))
    assert_closes(account)
    assert of_rank(account)["launch"] == 6 and account.clamped == 1
    alone = compute(sampled(run_of(one().finished()), r0_1=(0, 9, 0)), ns(20))
    assert alone.clamped == 1 and document(alone)["basis"]["launch"] == "unknown"


def test_window_has_the_attempts_idle_share():
    """The first steps compute 1 s of 2, the later ones 2 s of 2; what crosses the edge counts in proportion."""
    process = Process().steps(5, loader=1, forward=1).steps(5, forward=2).finished()
    run = sampled(run_of(process), r0_1=(15, 3, 300))
    for window, productive in (((0, ns(10)), 5), ((ns(10), ns(20)), 10), ((ns(9), ns(12)), 2.5)):
        account = compute(run, ns(20), window=window)
        assert_closes(account)
        spent = of_rank(account)
        assert spent["launch"] == pytest.approx(productive / 5), window
        assert spent["launch"] + spent["productive"] == productive
    assert figures.energy(account)["total"] == pytest.approx(300 * 3 / 20)


def test_measured_energy_by_hand():
    run = run_of(one(devices=2).finished(), one(rank=1).finished())
    account = compute(sampled(run, r0_1=(12, 3, 9000), r1_1=(12, 0, 5000)), ns(20))
    joules = figures.energy(account)
    # Each rank's energy over its own 20 s: 450 W of which 9 s were productive, 250 W of which 12 s were.
    assert joules["total"] == pytest.approx(14_000)
    assert joules["states"]["productive"] == pytest.approx(9 * 450 + 12 * 250)
    assert joules["states"]["launch"] == pytest.approx(3 * 450)
    assert sum(joules["states"].values()) == pytest.approx(14_000)
    assert document(account)["basis"]["energy"] == "measured"


def test_energy_without_process_is_declared_or_unknown():
    def restarted(**given):
        first = Process(**given).steps(10, forward=1).killed()
        second = Process(attempt=2, start=15, **given).resumed(9).steps(10, forward=1).finished()
        return sampled(run_of(first, second), r0_1=(0, 0, 4000), r0_2=(0, 0, 6000))

    plain = compute(restarted(), ns(25))
    joules = figures.energy(plain)
    assert joules["total"] == pytest.approx(10_000) and joules["states"]["down"] is None
    assert document(plain)["basis"]["energy"] == "measured"
    priced = compute(restarted(gpu_power_watts=100.0), ns(25))
    joules = figures.energy(priced)
    assert joules["states"]["down"] == pytest.approx(500) and joules["total"] == pytest.approx(10_500)
    assert document(priced)["basis"]["energy"] == "estimated"


def test_unmetered_rank_has_the_mean_power():
    run = run_of(one(devices=2).finished(), one(rank=1).finished())
    account = compute(sampled(run, r0_1=(0, 0, 8000)), ns(20))
    # 8 kJ in 20 s on two GPUs are 200 W each.
    assert figures.energy(account)["total"] == pytest.approx(8000 + 20 * 200)
    assert document(account)["basis"]["energy"] == "estimated"


def test_energy_of_running_attempt_ends_with_the_account():
    ahead = one(rank=0).silent(after=5)
    run = sampled(run_of(ahead, one(rank=1)), r0_1=(0, 0, 2500), r1_1=(0, 0, 2000))
    account = compute(run, ns(25), known_only=True, stale_seconds=30)
    # Known are 20 s of both; rank 0 reported 25 s after its start.
    assert account.end_ns == ns(20)
    assert figures.energy(account)["total"] == pytest.approx(2000 + 2500 * 20 / 25)


def test_launch_advice_names_a_rank_that_stands_out():
    run = sampled(
        run_of(*(one(rank=r).finished() for r in range(4))), **{f"r{r}_1": (12, 3, 0) for r in range(4)}
    )
    (cause,) = [c for c in explain(compute(run, ns(20))) if c["state"] == "launch"]
    assert cause["gpu_seconds"] == 12 and cause["share"] == 12 / 80
    assert cause["advice"].startswith(
        "25 % of compute time the GPU had nothing to run (estimate): use CUDA graphs"
    )
    for word in ("torch.compile", "larger batch", "tiny kernels", ".item()", "synchronize()", "NUMA"):
        assert word in cause["advice"]
    sampled(run, **{f"r{r}_1": (12, 0.6, 0) for r in range(3)}, r3_1=(12, 9, 0))
    (cause,) = [c for c in explain(compute(run, ns(20))) if c["state"] == "launch"]
    assert "rank 3 on n3 in 75 %, the others in 5 % (median)" in cause["advice"] and "NUMA" in cause["advice"]


number = st.one_of(st.integers(0, 40 * 10**9), st.integers(0, (1 << 62) - 1), st.just(0))
hardware = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("compute_ns", "idle_ns", "energy_mj", "odd"), number)
)
parts = st.dictionaries(
    st.sampled_from(["none", "loader", "forward", "compile"]), st.integers(0, 24), max_size=4
)


@settings(max_examples=80)
@given(st.data())
def test_account_closes_for_any_hardware_figures(data):
    processes, start = [], 0
    for attempt in (1, 2):
        for rank in range(2):
            process = Process(rank, attempt, start)
            for _ in range(data.draw(st.integers(0, 4))):
                eighths = {name: n / 8 for name, n in data.draw(parts).items()}
                process.between(**eighths) if data.draw(st.booleans()) else process.step(**eighths)
            end = data.draw(st.sampled_from(["finished", "failed", "killed", "silent"]))
            processes.append(getattr(process, end)())
        start = max(p.now_ns for p in processes) / 1e9 + 1
    run = run_of(*processes)
    window = data.draw(st.none() | st.tuples(st.integers(0, ns(9)), st.integers(ns(9), ns(30))))
    plain = compute(run, ns(100), window=window)
    for attempt in run.attempts.values():
        attempt.hardware = data.draw(hardware)
    account = compute(run, ns(100), window=window)
    assert_closes(account)
    for before, after in zip(plain.ranks, account.ranks, strict=True):
        moved = after.states[LAUNCH]
        assert 0 <= moved <= before.states[PRODUCTIVE]
        assert after.states[PRODUCTIVE] == before.states[PRODUCTIVE] - moved
        same = [i for i in range(len(STATES)) if i not in (LAUNCH, PRODUCTIVE)]
        assert [after.states[i] for i in same] == [before.states[i] for i in same]
    joules = figures.energy(account)
    if joules is not None:
        assert joules["total"] >= 0
        assert joules["total"] == pytest.approx(sum(v for v in joules["states"].values() if v is not None))
    document(account, explain(account))
