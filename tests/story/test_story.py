"""Stories of runs whose steps are written out here, with figures that can be checked by hand."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest
from support.seeds import cases

from goodput.account import Attempt
from goodput.account.states import INDEX, STATES
from goodput.estimates.levels import cuts
from goodput.runlog.replay import Step
from goodput.story import text
from goodput.story.build import KINDS, build_story
from goodput.story.incident import Hardware
from goodput.story.marks import marks_of
from goodput.story.pace import levels
from goodput.story.recording import Recording

S = 10**9


def states(**seconds: float) -> list[int]:
    found = [0] * len(STATES)
    for name, value in seconds.items():
        found[INDEX[name]] = round(value * S)
    return found


def recorded(lengths: list[list[dict[str, float]]], **fields) -> Recording:
    """One attempt of each rank from second 1000 on; `lengths` is by rank and step."""
    recording = Recording()
    for rank, steps in enumerate(lengths):
        attempt, now = Attempt(rank, 1, 1000 * S, host=f"n{rank}", **fields), 1000 * S
        for number, one in enumerate(steps):
            now += sum(states(**one))
            recording.add(Step("r", attempt, number, 1, now, states(**one), 0))
    return recording


def account(ranks: int, end: float, **more) -> dict:
    """As much of an account document as a story reads."""
    nothing = dict.fromkeys(STATES, 0.0)
    listed = [{"rank": rank, "host": f"n{rank}", "devices": 1, "states": nothing} for rank in range(ranks)]
    return {
        "run": "r",
        "status": "finished",
        "start": 1000.0,
        "end": end,
        "world_size": ranks,
        "gpu_seconds": ranks * (end - 1000.0),
        "cost": {"total": 2 * ranks * (end - 1000.0), "states": {}},
        "stall_threshold_seconds": 60.0,
        "restarts": [],
        "straggler": {"onsets": []},
        "hang": None,
        "ranks": listed,
        "unseen_ranks": [],
        **more,
    }


def event(kind: str, time: float, node: str = "n1", severity: str = "critical") -> Hardware:
    return Hardware(node, time, kind, "GPU-1", 79, "", severity, "", (1,))


CALM = [{"productive": 2.0, "communication": 1.0}] * 401


def test_calm_run_has_no_story():
    story = build_story(account(2, 2203.0), recorded([CALM, CALM]))
    assert story["events"] == [] and story["told_gpu_seconds"] == 0
    assert "Nothing happened" in text.render(story)


def test_slower_stretch_has_its_state_and_cost():
    """Of 401 steps of 3 s, 100 take 1.5 s longer in the loader: 150 s of two GPUs, within a bucket of three steps."""
    steps = [*CALM[:201], *([{"productive": 2.0, "communication": 1.0, "loader": 1.5}] * 100), *CALM[:100]]
    story = build_story(account(2, 2353.0), recorded([steps, steps]))
    slower, faster = story["events"]
    assert (slower["kind"], faster["kind"]) == ("slower", "faster")
    assert slower["gpu_seconds"] == pytest.approx(2 * 150.0, rel=0.04) and slower["cost_basis"] == "measured"
    assert slower["cost"] == pytest.approx(2 * slower["gpu_seconds"])
    # It lasts from second 1603 to 2053; a bucket is nine seconds or more.
    assert slower["time"] == pytest.approx(1603, abs=14) and slower["end"] == pytest.approx(2053, abs=28)
    assert "50.0 % longer" in slower["title"] and "loader +50.0 %" in slower["claims"][0]["text"]
    assert all(claim["basis"] == "measured" for claim in slower["claims"])


def test_faster_steps_that_still_cost_say_so():
    """3 s a step, then 6 s, then 4.5 s: the last are faster, and 50 % longer than those of the beginning."""
    parts = [({**CALM[0], "loader": waited}, 150) for waited in (0.0, 3.0, 1.5)]
    steps = [one for one, count in parts for _ in range(count)]
    slower, faster = build_story(account(2, 1000 + 150 * 13.5), recorded([steps] * 2))["events"]
    still = "they are still 50.0 % longer than the 3.0 s of earlier"
    assert still not in [claim["text"] for claim in slower["claims"]]
    assert faster["gpu_seconds"] == pytest.approx(2 * 150 * 1.5, rel=0.04)
    assert [claim["text"] for claim in faster["claims"]] == [
        "4.5 s a step instead of 6.0 s: loader -25.0 %",
        still,
    ]


def test_single_long_steps_are_no_change_of_pace():
    steps = list(CALM)
    for at in (50, 51, 200, 333):
        steps[at] = {"productive": 2.0, "communication": 1.0, "loader": 30.0}
    assert len(levels(recorded([steps]))) == 1


@pytest.mark.parametrize("seed", cases(5))
def test_noise_has_one_level(seed):
    """Steps with an autocorrelation of 0.8 and a spread of 3 %."""
    rng, noise, steps = random.Random(seed), 0.0, []
    for _ in range(1500):
        noise = 0.8 * noise + rng.gauss(0, 0.03 * 0.6)
        steps.append({"productive": 2.0 * (1 + noise)})
    assert len(levels(recorded([steps]))) == 1


def test_levels_are_cut_where_they_change():
    series = np.repeat([1.0, 3.0, 2.0, 2.0], 10) + 0.01 * np.random.default_rng(1).standard_normal(40)
    assert cuts(series) == [10, 20]
    assert cuts(np.ones(3)) == [] and cuts(np.ones(1)) == []


def test_stall_names_the_rank_that_others_waited_for():
    """Rank 1 is in its loader for 200 s, rank 0 waits for it in communication."""
    long = (
        [{"productive": 2.0, "communication": 201.0}],
        [{"productive": 2.0, "loader": 200.0, "communication": 1.0}],
    )
    story = build_story(account(2, 2403.0), recorded([[*CALM[:200], *own, *CALM[:200]] for own in long]))
    (stall,) = story["events"]
    assert (stall["kind"], stall["ranks"], stall["hosts"]) == ("stall", [1], ["n1"])
    assert stall["gpu_seconds"] == pytest.approx(2 * 203)
    assert "rank 1 on n1 was in loader for 3.3 min" in stall["claims"][0]["text"]


def test_stall_of_all_in_communication_names_nobody():
    long = [{"productive": 2.0, "communication": 201.0}]
    story = build_story(account(2, 2403.0), recorded([[*CALM[:200], *long, *CALM[:200]]] * 2))
    (stall,) = story["events"]
    assert stall["ranks"] == [] and "none is named" in stall["claims"][0]["text"]


def test_hardware_on_the_same_node_is_coincident():
    """The stall lasts from second 1600 to 1803. An event elsewhere, or much earlier, stands alone."""
    long = (
        [{"productive": 2.0, "communication": 201.0}],
        [{"productive": 2.0, "loader": 200.0, "communication": 1.0}],
    )
    recording = recorded([[*CALM[:200], *own, *CALM[:200]] for own in long])
    hardware = [event("xid", 1650.0), event("ecc", 1650.0, "n0"), event("throttle", 1100.0)]
    story = build_story(account(2, 2403.0), recording, hardware)
    kinds = {one["kind"]: one for one in story["events"]}
    assert [one["kind"] for one in story["events"]] == ["hardware", "stall", "hardware"]
    claims = kinds["stall"]["claims"]
    assert [claim["basis"] for claim in claims] == ["measured", "coincident"]
    assert "xid 79 on GPU-1 of n1" in claims[1]["text"] and "50 s after its start" in claims[1]["text"]
    assert (
        kinds["stall"]["gpu_seconds"]
        == build_story(account(2, 2403.0), recording)["events"][0]["gpu_seconds"]
    )


def test_restart_says_how_ranks_ended():
    recording = recorded([CALM, CALM, CALM])
    for (_, rank), track in recording.tracks.items():
        track.attempt.alive, track.attempt.end_ns = False, 2203 * S
        track.attempt.ended = "failed" if rank == 2 else ""
    restart = {
        "attempt": 2, "time": 2263.0, "down_seconds": 60.0, "lost_steps": 30, "lost_gpu_seconds": 90.0,
        "resume_step": 390, "startup_gpu_seconds": 10.0, "gpu_seconds": 280.0, "cost": None,
    }  # fmt: skip
    hardware = [event("lost", 2190.0, "n2"), event("xid", 1500.0, "n2")]
    story = build_story(account(3, 2263.0, restarts=[restart]), recording, hardware)
    alone, one = story["events"]
    assert alone["kind"] == "hardware" and (one["kind"], one["ranks"], one["hosts"][-1]) == (
        "restart",
        [2],
        "n2",
    )
    texts = [claim["text"] for claim in one["claims"]]
    assert "before it rank 2 on n2 failed, 2 ranks were killed" in texts
    assert one["claims"][-1]["basis"] == "coincident" and "73 s before" in texts[-1]
    assert one["gpu_seconds"] == 280.0


def test_slow_rank_takes_the_change_of_pace_as_its_own():
    """Rank 1 computes for 3 s instead of 2 s in steps 201 to 300; the others wait a second longer in each."""
    slow, waits = {"productive": 3.0, "communication": 1.0}, {"productive": 2.0, "communication": 2.0}
    ranks = [[*CALM[:201], *([own] * 100), *CALM[:100]] for own in (waits, slow, waits)]
    onset = {"rank": 1, "attempt": 1, "first_step": 201, "last_step": 300, "from_start": False}
    story = build_story(account(3, 2303.0, straggler={"onsets": [onset]}), recorded(ranks))
    (one,) = story["events"]
    assert (one["kind"], one["ranks"], one["step"]) == ("slow rank", [1], 201)
    assert (one["time"], one["end"]) == (1603.0, 2003.0)
    assert one["gpu_seconds"] == pytest.approx(200.0) and one["cost_basis"] == "estimated"
    claims = " ".join(claim["text"] for claim in one["claims"])
    assert "its compute took 3.0 s a step, 2.0 s for the median" in claims and "33.3 % longer" in claims


def test_long_and_missing_checkpoints():
    save = {"productive": 2.0, "communication": 1.0, "checkpoint": 5.0}
    steps = [save if number % 50 == 0 and not 450 < number < 1800 else CALM[0] for number in range(2000)]
    steps[200] = {**save, "checkpoint": 400.0}
    story = build_story(account(1, 8000.0), recorded([steps]))
    found = {one["kind"]: one for one in story["events"]}
    assert set(found) == {"checkpoint", "no checkpoint"} < set(KINDS)
    assert found["checkpoint"]["gpu_seconds"] == pytest.approx(395.0)
    # From step 450 to step 1800 there is none: 1349 steps of 3 s and one up to its save.
    assert found["no checkpoint"]["end"] - found["no checkpoint"]["time"] == pytest.approx(1350 * 3.0)


def test_columns_are_recorded_as_single_steps():
    one = recorded([CALM[:50]])
    track = next(iter(one.tracks.values()))
    other = Recording()
    attempt = Attempt(0, 1, 1000 * S)
    table = np.array([states(**step) for step in CALM[:50]]).T
    for low, high in ((0, 1), (1, 20), (20, 50)):
        other.add_columns(
            "r", attempt, np.arange(low, high), np.ones(high - low, np.int64), table[:, low:high]
        )
    assert np.array_equal(track.rows, next(iter(other.tracks.values())).rows)


def test_recording_holds_each_row_once():
    """An array that is a part of another one keeps all of that in memory."""
    recording = recorded([[{"productive": 1}] * 50])
    (track,) = recording.tracks.values()
    held = [track.spent, *track.parts]
    assert all(array.base is None for array in held)
    assert sum(array.nbytes for array in held) == 8 * (50 * (3 + 1) + len(STATES))


def test_recording_knows_states_that_come_late():
    """A row has only the states that its attempt was in."""
    steps = [{"productive": 1.0}] * 10 + [{"loader": 2.0}] * 5 + [{"evaluation": 3.0, "productive": 1.0}] * 5
    table = np.array([states(**step) for step in steps]).T
    attempt, ends = Attempt(0, 1, 0), np.cumsum(table.sum(axis=0))
    for edges in ((0, 20), (0, 7, 12, 20), range(21)):
        recording = Recording()
        for low, high in pairwise(edges):
            counts = np.ones(high - low, np.int64)
            recording.add_columns("r", attempt, np.arange(low, high), counts, table[:, low:high])
        (track,) = recording.tracks.values()
        # The first step is left out: it has the attempt's start in it.
        spent = np.cumsum(table, axis=1) - table[:, :1]
        assert np.array_equal(track.at(ends)[:, 1:], spent.T)
        assert track.rows.shape == (20, 3 + 3)


def test_thinning_keeps_times_and_steps():
    thin, full = Recording(rows_max=40), Recording()
    attempt, now = Attempt(0, 1, 0), 0
    for number in range(200):
        now += 3 * S
        for recording in (thin, full):
            recording.add(Step("r", attempt, number, 1, now, states(productive=3.0), 0))
    few, all_rows = (next(iter(one.tracks.values())).rows for one in (thin, full))
    assert len(few) <= 41 < len(all_rows) and np.array_equal(few[-1], all_rows[-1])


def test_text_fits_a_terminal():
    long = (
        [{"productive": 2.0, "communication": 201.0}],
        [{"productive": 2.0, "loader": 200.0, "communication": 1.0}],
    )
    recording = recorded([[*CALM[:200], *own, *CALM[:200]] for own in long])
    hardware = [event("xid", 1650.0 + at) for at in range(9)]
    shown = text.render(build_story(account(2, 2403.0, run="r" * 100 + "\x1b"), recording, hardware))
    assert max(len(line) for line in shown.split("\n") if "r" * 100 not in line) <= 80
    assert "\x1b" not in shown and "coincident: 5 more hardware events" in shown


@pytest.mark.parametrize(
    ("on_cpu", "unit", "other"), [(True, "process-", "GPU-"), (False, "GPU-", "process-")]
)
def test_story_without_gpus_speaks_of_processes(on_cpu, unit, other):
    steps = [*CALM[:201], *([{"productive": 2.0, "communication": 1.0, "loader": 1.5}] * 100), *CALM[:100]]
    story = build_story(account(2, 2353.0, is_on_cpu=on_cpu), recorded([steps, steps]))
    told = text.render(story) + "".join(mark.cost for mark in marks_of(story, is_final=True))
    assert story["events"] and told.count(f"{unit}hours") >= 3 and other not in told
