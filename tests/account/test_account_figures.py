"""Figures that follow from the sums, with hand-worked numbers."""

from __future__ import annotations

import json
import re
from math import sqrt
from pathlib import Path

import pytest
from support.account.account_history import Process, account_of, ns, run_of

from goodput.account import Attempt, Event, Row, Run, compute, document, figures
from goodput.account.text import render
from goodput.causes import explain
from goodput.runlog import replay

SECOND = 10**9
DOCS = Path(__file__).parents[2] / "docs"


def test_pipeline_bubble_by_hand():
    # Four stages, 12 microbatches: (4 - 1) / (12 + 4 - 1) = 0.2 cannot be avoided. Each step is 10 s, of which
    # 3 s are waiting for other stages: 0.3, so 0.1 too much.
    ranks = [
        Process(r, stage=r, microbatches=12).steps(5, forward=3, backward=4, communication=3).finished()
        for r in range(4)
    ]
    assert figures.pipeline(account_of(*ranks)) == {
        "stages": 4,
        "microbatches": 12,
        "bubble": 0.3,
        "ideal_bubble": 3 / 15,
        "excess": pytest.approx(0.1),
    }
    for one in ranks:
        one.identity["microbatches"] = None
    unknown = figures.pipeline(account_of(*ranks))
    assert (unknown["bubble"], unknown["ideal_bubble"], unknown["excess"]) == (0.3, None, None)
    assert figures.pipeline(account_of(Process(stage=0).steps(5, forward=3).finished())) is None
    assert figures.pipeline(account_of(Process().steps(5, forward=3).finished())) is None


def test_slow_stage_and_host_have_shares():
    # Own times 4, 4, 4 and 6 s: ranks 2 and 3 are stage 1 on node b; rank 3 is waited for 3 x 2 s a step.
    places = [("a", 0), ("a", 0), ("b", 1), ("b", 1)]
    ranks = [
        Process(r, host=host, stage=stage).steps(
            8, forward=6 if r == 3 else 4, communication=1 if r == 3 else 3
        )
        for r, (host, stage) in enumerate(places)
    ]
    found = document(account_of(*[one.finished() for one in ranks]))["straggler"]
    assert found["slowdown"] == 4 * 7 / (4 * 7 - 6)
    assert (found["culprit"], found["because"]) == (3, "productive")
    assert found["shares"] == [{"rank": 3, "host": "b", "share": 1.0}]
    assert (found["hosts"], found["stages"]) == ([{"host": "b", "share": 1.0}], [{"stage": 1, "share": 1.0}])


def test_best_checkpoint_interval_by_hand():
    def saving(one):
        for _ in range(4):
            one.steps(10, forward=5).between(checkpoint=2.5).saved()
        return one

    # Two attempts of 4 x 52.5 s, each killed 0.5 s after its last checkpoint, and a third that finishes.
    first = saving(Process()).killed(after=0.5)
    second = saving(Process(attempt=2, start=300).resumed(39)).killed(after=0.5)
    third = saving(Process(attempt=3, start=600).resumed(79)).finished()
    found = figures.checkpoints(account_of(first, second, third))
    alive = 2 * 210.5 + 210
    assert found == {
        "committed": 12,
        "unfinished": False,
        "save_seconds": 2.5,
        "interval_seconds": 52.5,  # not alive / 12: time before the first save and while down has no saves
        "failures": 2,
        "seconds_between_failures": alive / 2,
        "best_interval_seconds": pytest.approx(sqrt(2 * 2.5 * alive / 2)),
        "source": figures.INTERVAL_SOURCE,
    }
    assert "Young" in found["source"]
    healthy = figures.checkpoints(account_of(saving(Process()).finished()))
    assert (healthy["failures"], healthy["best_interval_seconds"]) == (0, None)
    once = figures.checkpoints(
        account_of(Process().steps(3, forward=1).between(checkpoint=1).saved().finished())
    )
    assert (once["committed"], once["save_seconds"], once["interval_seconds"]) == (1, 1.0, None)
    begun = Process().steps(3, forward=1).saved(committed=False).killed()
    assert figures.checkpoints(account_of(begun))["unfinished"]


def test_checkpoint_interval_is_within_one_attempt():
    def at(one, *seconds):
        for number, second in enumerate(seconds):
            one.events.append(Event(len(one.events) + 1, "checkpoint_committed", ns(second), number))
        return one

    # 30, 60, 100 s and, after a restart, 200, 230 s: (70 + 30) / 3. Taken from the rank that committed most.
    first, second = at(Process().steps(100, forward=1), 30, 60, 100).killed(), Process(attempt=2, start=150)
    second = at(second.resumed(99).steps(90, forward=1), 200, 230).finished()
    other = at(Process(1).steps(100, forward=1), 29, 90).killed()
    assert figures.checkpoints(account_of(first, second, other))["interval_seconds"] == pytest.approx(100 / 3)
    backwards = Process().steps(100, forward=1)
    backwards.events = list(reversed(first.events))
    assert figures.checkpoints(account_of(backwards.killed()))["interval_seconds"] == 35.0


def test_simultaneous_commits_have_no_interval():
    saved = (
        Process().steps(4, forward=5).between(checkpoint=2.5).saved(2).saved(3).steps(1, forward=5).killed()
    )
    account = account_of(saved, Process(attempt=2, start=300).resumed(3).steps(1, forward=1).finished())
    assert figures.checkpoints(account)["interval_seconds"] == 0.0
    (advice,) = (cause["advice"] for cause in explain(account) if cause["state"] == "checkpoint")
    assert "The best interval for the failures seen is" in advice


def test_checkpoint_reported_twice_counts_once():
    one = Process().steps(2, forward=1).saved(1).between(checkpoint=1).saved(1).finished()
    assert figures.checkpoints(account_of(one))["committed"] == 1


def test_throughput_against_best_shown_and_ideal():
    # 64 steps at 10 samples a second, then 64 at 5: (640 + 640) samples in 64 + 128 s, of 1920 at the best pace.
    one = Process().steps(64, forward=1, samples=10).steps(64, forward=2, samples=10).finished()
    found = figures.throughput(account_of(one))
    assert found == {
        "samples": 1280.0,
        "samples_per_second": 1280 / 192,
        "ideal_samples_per_second": 10.0,
        "ideal_basis": "best shown",
        "goodput": 1280 / 1920,
        "samples_basis": "each rank",
        "samples_ranks": 1,
    }
    one.identity["ideal_samples_per_second"] = 20.0
    given = figures.throughput(account_of(one))
    assert (given["goodput"], given["ideal_basis"]) == (1280 / (192 * 20), "given")
    nothing = figures.throughput(account_of(Process().steps(3, forward=1).finished()))
    assert (nothing["goodput"], nothing["samples_per_second"], nothing["ideal_basis"]) == (None, None, None)


def test_no_throughput_without_wall_time():
    """A window of no length holds a step without length and its samples, while the run shows a rate elsewhere."""
    instant, later = (
        Attempt(rank=1, attempt=n, start_ns=at, world_size=2) for n, at in ((1, 0), (2, 1 << 61))
    )
    instant.add_rows([Row(1, 0, 0, 0, 5, (0,), (0,))])
    later.add_rows(
        Row(n, n, later.start_ns + (n - 1) * SECOND, later.start_ns + n * SECOND, 5 * n, (n * SECOND,), (0,))
        for n in (1, 2)
    )
    run = Run("r1", {(1, 1): instant, (1, 2): later})
    account = compute(run, later.start_ns, window=(0, 0))
    found = document(account, explain(account))
    assert found["throughput"] == {
        "samples": 5.0,
        **dict.fromkeys(("samples_per_second", "ideal_samples_per_second", "ideal_basis", "goodput")),
        "samples_basis": "each rank",
        "samples_ranks": 1,
    }
    assert "throughput" not in render(found, full=True)


def test_lost_samples_are_no_throughput():
    first = Process().steps(10, forward=1, samples=4).killed()
    second = Process(attempt=2, start=10).resumed(4).steps(10, forward=1, samples=4).finished()
    # Ten of 20 steps were done again from step 5 on: 5 kept of the first, 10 of the second; 20 s in all.
    found = figures.throughput(account_of(first, second))
    assert (found["samples"], found["samples_per_second"]) == (60.0, 3.0)


def test_money_and_energy_by_state_close():
    rates = {"gpu_hour_cost": 3.6, "gpu_power_watts": 500.0, "devices": 2, "flops_per_step": 6e12}
    one = Process(**rates).between(none=4).steps(8, loader=0.5, forward=1.5, samples=16).finished()
    account = account_of(one)
    # 20 s on 2 devices: 4 s startup, 4 s loader, 12 s productive each; 3.6 dollars an hour are 0.001 a second.
    dollars, joules = figures.money(account), figures.energy(account)
    assert dollars["total"] == pytest.approx(40 * 0.001)
    assert {s: v for s, v in dollars["states"].items() if v} == pytest.approx(
        {"startup": 0.008, "loader": 0.008, "productive": 0.024}
    )
    assert joules["total"] == pytest.approx(40 * 500) and joules["states"]["loader"] == pytest.approx(4000)
    assert figures.per_unit(account, dollars["total"]) == pytest.approx(
        {"productive_gpu_seconds": 24 / 0.04, "samples": 128 / 0.04, "flops": 48e12 / 0.04}
    )
    assert figures.per_unit(account, joules["total"])["flops"] == pytest.approx(48e12 / 20_000)
    assert document(account)["basis"]["energy"] == "estimated"
    plain = account_of(Process().steps(2, forward=1).finished())
    found = document(plain)
    assert [found[name] for name in ("cost", "energy", "per_dollar", "per_joule")] == [None] * 4


def test_restart_cost_by_hand():
    first = Process(gpu_hour_cost=3.6, devices=2).steps(10, forward=1).begun(forward=0.5).killed(after=0.5)
    second = Process(attempt=2, start=15, gpu_hour_cost=3.6, devices=2).resumed(6)
    second.between(none=2, restore=3).step(forward=3).steps(4, forward=1).finished()
    (found,) = document(account_of(first, second))["restarts"]
    # Down 4 s; lost 3 steps and the second of the death; startup 2 s, restore 3 s, first step 2 s too long.
    assert (found["down_seconds"], found["lost_steps"], found["lost_gpu_seconds"]) == (4.0, 3, 8.0)
    assert found["startup_gpu_seconds"] == 2 * (2 + 3 + 2)
    assert found["gpu_seconds"] == 8 + 8 + 14
    assert found["cost"] == pytest.approx(30 * 0.001)


def test_mfu_and_hfu_with_a_listed_peak():
    # H100 SXM, bf16: 989.4 TFLOP/s dense. Ten steps of 1 s with 200 TFLOP and 250 with recomputation, in 20 s.
    rates = {
        "device": "NVIDIA H100 80GB HBM3",
        "dtype": "bf16",
        "flops_per_step": 2e14,
        "hardware_flops_per_step": 2.5e14,
    }
    account = account_of(Process(**rates).between(none=10).steps(10, forward=1).finished())
    assert account.ratio("mfu") == pytest.approx(10 * 2e14 / (20 * 989.4e12))
    assert account.ratio("hfu") == pytest.approx(10 * 2.5e14 / (20 * 989.4e12))
    two = account_of(Process(**rates, devices=2).between(none=10).steps(10, forward=1).finished())
    assert two.ratio("mfu") == pytest.approx(account.ratio("mfu") / 2), "the table's peak is of one device"
    unknown = Process(**{**rates, "device": "Some New GPU"}).steps(10, forward=1).finished()
    assert account_of(unknown).ratio("mfu") is None
    no_type = Process(**{**rates, "dtype": ""}).steps(10, forward=1).finished()
    assert account_of(no_type).ratio("mfu") is None
    mixed = Process(**{**rates, "dtype": "bf16=0.5,fp8=0.5"}).steps(10, forward=1).finished()
    # Half of the FLOPs at 989.4, half at 1978.9: 1 / (0.5 / 989.4 + 0.5 / 1978.9) in all.
    assert account_of(mixed).ratio("mfu") == pytest.approx(2e14 * (0.5 / 989.4e12 + 0.5 / 1978.9e12))


def test_mfu_above_one_is_an_input_error():
    rates = {"flops_per_step": 4e12, "peak_flops_per_second": 1e12}
    ranks = [Process(r, **rates).steps(10, forward=1).finished() for r in range(8)]
    account = account_of(*ranks)
    assert account.raw_ratio("mfu") == pytest.approx(4.0) and account.ratio("mfu") is None
    found = document(account)
    assert (found["factors"]["mfu"], found["factors"]["compute_efficiency"]) == (None, None)
    (text,) = found["errors"]
    assert text.startswith("MFU of 400 %") and "all 8 ranks" in text
    fine = [Process(r, **{**rates, "flops_per_step": 4e11}).steps(10, forward=1).finished() for r in range(8)]
    assert document(account_of(*fine))["errors"] == []


def test_ratios_are_ratios_of_sums():
    one = Process(flops_per_step=1e9, peak_flops_per_second=1e10)
    one.step(loader=900, forward=100).steps(1000, forward=0.001).finished()
    # The first step's excess cannot be compute: others have 0.001 s of it. 100 - 0.001 s are compile.
    account = compute(run_of(one), ns(5000), stall_seconds=2000.0)
    assert account.gpu_ns()[0] == ns(0.001) + 1000 * ns(0.001)
    assert account.ratio("goodput") == pytest.approx(1.001 / 1001)
    long = Process().steps(2, forward=1000, loader=1000).steps(2000, forward=0.0015, loader=0.0005).finished()
    assert compute(run_of(long), ns(9000), stall_seconds=1e5).ratio("goodput") == pytest.approx(
        (0.0015 + 1000 + 2000 * 0.0015) / 4004
    )


def test_worked_example_equals_replay():
    """Every row of the page's table of figures, and of its table of states."""
    page = (DOCS / "definitions.md").read_text()
    (one,) = replay(str(DOCS / "example-run.jsonl"))
    assert not one.problems.listed
    found = document(one.account, explain(one.account))
    found = json.loads(json.dumps(found))
    rows = re.findall(
        r"^\| `([a-z_.\[\]0-9]+)` \|.*\| ([^|]+) \|$", page.split("## A whole run by hand")[1], re.M
    )
    checked = 0
    for name, value in rows:
        if name in found["states"]:
            assert found["states"][name] == float(value)
            ranks = re.search(
                rf"^\| `{name}` \| ([^|]+) \| ([^|]+) \|", page.split("A whole run by hand")[-1], re.M
            )
            for rank, text in zip(found["ranks"], ranks.groups(), strict=True):
                assert rank["states"][name] == float(text.split("=")[-1])
        else:
            at = found
            for part in re.findall(r"[a-z_]+|\[\d+\]", name):
                at = at[int(part[1:-1])] if part[0] == "[" else at[part]
            assert at is None if value == "null" else at == pytest.approx(float(value), abs=5e-7), name
        checked += 1
    assert checked >= 29
    assert found["checkpoints"]["best_interval_seconds"] == pytest.approx(18.3, abs=0.05)
    assert found["cost"]["total"] == pytest.approx(0.188)
