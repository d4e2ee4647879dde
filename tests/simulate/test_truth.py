"""The generator's own bookkeeping of a run, against times worked out by hand and against closure."""

from __future__ import annotations

import numpy as np
import pytest

from goodput.simulate.random_scenario import random_scenario
from goodput.simulate.run import SimulatedRun
from goodput.simulate.scenario import RunFault, Workload
from goodput.simulate.scenario_file import AttemptEntry, RunEntry
from goodput.simulate.truth import RunTruth

WORKLOAD = Workload(
    step=2, checkpoint_every=100, checkpoint=4, checkpoint_noise=0, evaluation_every=1e9, hiccup_every=0
)


def played(run: RunEntry, seconds: float) -> tuple[RunTruth, SimulatedRun]:
    truth = RunTruth(run.plan())
    simulated = SimulatedRun(truth.plan, on_span=truth.on_span, on_end=truth.on_end)
    simulated.advance(seconds)
    return truth, simulated


def states_of(truth: RunTruth, run: SimulatedRun, end: float) -> dict[str, float]:
    return truth.document(run, round(end * 1e9))["states"]


def test_restart_loses_steps_since_the_checkpoint():
    """Killed 50 to 90 s after a commit, 40 s down of which 30 s in the queue, two ranks of eight missing after it."""
    attempts = [
        AttemptEntry(10, 300, "killed", startup=20, compile=10, skew=3),
        AttemptEntry(340, 700, "finished", ranks=6, startup=20, restore=8, compile=10, submit=310),
    ]
    truth, run = played(RunEntry("r", 8, attempts, workload=WORKLOAD), 800)
    states = states_of(truth, run, 700)
    assert sum(states.values()) == pytest.approx(8 * 290 + 8 * 40 + 6 * 360)
    # All are expected until the second attempt begins; only those of it can have waited in its queue.
    assert states["down"] == pytest.approx(6 * 10 + 2 * 40) and states["queue"] == pytest.approx(6 * 30)
    assert states["startup"] == pytest.approx(8 * 20 + 6 * 20) and states["restore"] == pytest.approx(6 * 8)
    assert states["compile"] == pytest.approx(14 * 10)
    assert 8 * 40 < states["lost"] < 8 * 100
    assert states["checkpoint"] == pytest.approx(8 * 2 * 4 + 6 * 3 * 4)


@pytest.mark.parametrize("kind", ["hang", "death", "network"])
def test_long_hang_is_a_stall(kind):
    faults = [RunFault(kind, 200, 400, rank=None if kind == "network" else 3, phase="forward")]
    attempts = [AttemptEntry(0, 400, "killed"), AttemptEntry(420, 500, "finished")]
    truth, run = played(RunEntry("r", 8, attempts, faults, workload=WORKLOAD), 600)
    states, (hang,) = states_of(truth, run, 500), truth.document(run, 500 * 10**9)["hangs"]
    ranks = 7 if kind == "death" else 8
    assert states["stall"] == pytest.approx(ranks * 199, abs=2 * ranks)
    assert hang["ranks"] == ([] if kind == "network" else [3]) and hang["is_stall"]
    assert 200 <= hang["begin_seconds"] < 203 and hang["end_seconds"] == 400
    # The dead rank is down from its death on.
    assert states["down"] == pytest.approx(8 * 20 + (199 if kind == "death" else 0), abs=3)


@pytest.mark.parametrize(("begin", "end", "is_stall"), [(29, 400, False), (29, 2400, True), (35, 400, True)])
def test_hang_before_step_lengths_are_known(begin, end, is_stall):
    """The first step ends at 30 s, the second at 32 s if nothing hangs: before that the threshold is 30 min, then 60 s."""
    faults = [RunFault("hang", begin, end, rank=3, phase="forward")]
    entry = AttemptEntry(0, end, "killed", startup=20, compile=8, skew=0)
    truth, run = played(RunEntry("r", 8, [entry], faults, workload=WORKLOAD), end + 100)
    states, (hang,) = states_of(truth, run, end), truth.document(run, end * 10**9)["hangs"]
    # The verdict of a hang does not wait for half an hour.
    assert hang["is_stall"] and (states["stall"] > 0) == is_stall
    assert states["stall" if is_stall else "lost"] == pytest.approx(8 * (end - begin), abs=8 * 3)


def test_culprit_costs_what_it_delays():
    fault = RunFault("backward", 100, 300, 1.4, rank=2)
    truth, run = played(RunEntry("r", 8, [AttemptEntry(0, 500, "finished")], [fault], workload=WORKLOAD), 600)
    (culprit,) = truth.document(run, 500 * 10**9)["culprits"]
    assert culprit["slowdown"] == pytest.approx(1 + 0.4 * 0.55, abs=0.02)
    assert (culprit["rank"], culprit["kind"]) == (2, "backward") and 100 <= culprit["begin_seconds"] < 103
    states = states_of(truth, run, 500)
    # The other seven wait for it in each of its steps.
    waited = 7 * 0.22 / 1.22 * (culprit["end_seconds"] - culprit["begin_seconds"])
    assert states["straggler"] == pytest.approx(waited, rel=0.1)


def test_even_pipeline_waits_for_its_schedule():
    """Four stages and eight microbatches: 3 of 11 parts of each step are idle, and nobody waits for a slow one."""
    run = RunEntry("r", 8, [AttemptEntry(0, 500, "finished", compile=0)], workload=WORKLOAD, stages=4)
    truth, simulated = played(run, 600)
    states = states_of(truth, simulated, 500)
    in_steps = sum(states[state] for state in ("productive", "loader", "h2d", "communication", "bubble"))
    assert states["bubble"] / in_steps == pytest.approx(3 / 11, abs=0.01)
    assert states["straggler"] < 0.03 * in_steps


@pytest.mark.parametrize("seed", range(4))
def test_random_truth_closes(seed):
    """Each rank's states sum to the time in which it is expected, to the nanosecond."""
    for entry in random_scenario(seed, ranks=32, seconds=900).runs:
        truth, run = played(entry, 900)
        end_ns = truth.end_ns()
        assert end_ns is not None
        states = truth.states(end_ns)
        assert states.min() >= 0
        starts = [truth.begin_ns(), *(one.begin_ns for one in truth.attempts[1:]), end_ns]
        expected = np.zeros(truth.ranks, np.int64)
        for attempt, low, high in zip(truth.attempts, starts, starts[1:], strict=False):
            expected[: attempt.ranks] += high - low
        assert states.sum(axis=1).tolist() == expected.tolist()
        assert run.finished()
