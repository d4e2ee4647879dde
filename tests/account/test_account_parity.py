"""The account beside Google's ml-goodput-measurement, on hundreds of generated histories.

Availability, lost time and the pauses (down, startup, restore) are the same to the microsecond once the peer's words
are mapped to ours, in peer_goodput.py. Where the two differ on purpose, the figures of both are written down here.
"""

import json
from pathlib import Path
from random import Random

import pytest
from support.account.account_history import ns, of_rank, run_of
from support.account.peer_goodput import Life, Step, ask, is_seen, mapped, moves, processes, seconds_of
from support.seeds import cases

from goodput.account import compute

# The peer adds up floating-point seconds; all times here are whole milliseconds.
CLOSE = 1e-6
HISTORIES_PER_SEED = 50
ENDS = ("killed", "killed", "silent", "silent", "failed", "finished")
LAST_ENDS = ("finished", "finished", "finished", "alive", "killed", "failed")


def account_of(lives, query_ms):
    return compute(run_of(*processes(lives)), now_ns=ns(query_ms / 1e3))


def ours(lives, query_ms) -> dict[str, float]:
    """The account's seconds in the terms of `mapped`, and its parts."""
    account = account_of(lives, query_ms)
    states = of_rank(account)
    total = (account.end_ns - account.start_ns) / 1e9
    assert "stall" not in states and "unobserved" not in states
    return {
        "total": total,
        "kept": account.ratio("availability") * total + states.get("compile", 0.0),
        "lost": states.get("lost", 0.0),
        "pause": sum(states.get(state, 0.0) for state in ("down", "startup", "restore")),
        "compile": states.get("compile", 0.0),
    }


class Generated:
    """A history drawn from a seed.

    An attempt resumes from a committed checkpoint, not always the newest, or from nothing. Not before the point from
    which the last one resumed: that the peer cannot take back (test_peer_keeps_credit_for_redone_work).
    """

    def __init__(self, random: Random):
        self.random, self.lives = random, []
        self.at_ms, self.floor, self.resume = 0, -1, -1
        self.committed = [-1]
        for left in reversed(range(random.randint(1, 6))):
            self._life(last=left == 0)
        # What follows a failure is nobody's time here, and a pause there.
        self.query_ms = self.lives[-1].end_ms()

    def _life(self, last: bool) -> None:
        random = self.random
        life = Life(self.at_ms, self._startup(), [])
        if last or random.random() < 0.85:
            self._work(life, last)
        else:
            life.startup_ms = life.startup_ms[: random.randint(0, len(life.startup_ms))]
        if life.end != "finished":
            life.silence_ms = random.randint(0, 2_000)
        self.lives.append(life)
        self.at_ms = life.end_ms() + random.choice((0, random.randint(1, 120_000)))

    def _startup(self) -> list[tuple[str, int]]:
        named = [name for name in ("tpu_init", "training_preparation", "") if self.random.random() < 0.8]
        return [(name, self.random.randint(1, 20_000)) for name in named]

    def _work(self, life: Life, last: bool) -> None:
        random = self.random
        before = next((one for one in reversed(self.lives) if one.recorded()), None)
        self.resume = random.choice([step for step in self.committed if step >= self.floor]) if before else -1
        self.committed = [step for step in self.committed if step <= self.resume]
        life.end = random.choice(LAST_ENDS if last else ENDS)
        count = random.randint(0 if not last and life.end != "finished" else 1, 8)
        if self.resume >= 0 or not count or random.random() < 0.5:
            life.resume = self.resume
        for index in range(self.resume + 1, self.resume + 1 + count):
            self._step(life, index, first=not life.steps)
        if life.end == "alive" or not count or (life.end != "finished" and random.random() < 0.6):
            life.open_ms = self._parts()
        if before is None or is_seen(before, life):
            self.floor = self.resume

    def _step(self, life: Life, index: int, first: bool) -> None:
        random = self.random
        step = Step(index, self._parts())
        if first and random.random() < 0.7:
            step.parts_ms["forward"] += random.randint(1, 15_000)
        if random.random() < 0.3:
            where = random.choice((step.parts_ms, step.after_ms))
            where["checkpoint"] = random.randint(1, 300)
            life.saved[index] = random.random() < 0.8
            if life.saved[index]:
                self.committed.append(index)
        for phase in ("evaluation", "none"):
            if random.random() < 0.15:
                step.after_ms[phase] = random.randint(1, 5_000)
        life.steps.append(step)

    def _parts(self) -> dict[str, int]:
        most = self.random.choice((40, 3_000))
        phases = ("loader", "h2d", "forward", "backward", "communication", "optimizer")
        return {"forward": 300, **{phase: self.random.randint(1, most) for phase in phases}}


def histories(seed: int, cache_dir):
    """(history, the peer's answer), without the few that the peer refuses to answer for."""
    refused = 0
    for number in range(HISTORIES_PER_SEED):
        history = Generated(Random(seed * HISTORIES_PER_SEED + number))
        try:
            answer = ask(history.lives, history.query_ms, cache_dir / str(number))
        except ValueError as error:
            # It takes the saves of lost steps out of productive time too, which can make that negative.
            assert "Productive training time is invalid" in str(error)
            refused += 1
            continue
        yield history, answer
    assert refused <= HISTORIES_PER_SEED // 5


@pytest.mark.parametrize("seed", cases(8))
def test_availability_lost_and_pauses_agree(seed, tmp_path):
    for history, answer in histories(seed, tmp_path):
        lives, query_ms = history.lives, history.query_ms
        mine, theirs = ours(lives, query_ms), mapped(answer, lives, query_ms)
        declared = (lives, moves(lives, query_ms), answer, mine, theirs)
        assert mine["total"] == pytest.approx(answer["total"], abs=CLOSE), declared
        for figure in ("kept", "lost", "pause"):
            assert mine[figure] == pytest.approx(theirs[figure], abs=CLOSE), (figure, declared)
        availability = (theirs["kept"] - mine["compile"]) / answer["total"]
        assert account_of(lives, query_ms).ratio("availability") == pytest.approx(availability, abs=1e-6)


def test_every_mapped_difference_occurs():
    """And restarts from checkpoints that are not the newest do, and several lives: the histories are not too tame."""
    drawn = [Generated(Random(number)) for number in range(8 * HISTORIES_PER_SEED)]
    reasons = {move[0] for one in drawn for move in moves(one.lives, one.query_ms)}
    assert reasons == {
        "after the last step",
        "before the next step",
        "before the open step",
        "death",
        "failed at the end",
        "not in a checkpoint",
        "restart not seen",
        "running step",
        "starts before the first step",
        "starts counted twice",
        "startup in no phase",
    }
    assert sum(len(one.lives) > 2 for one in drawn) > 100


@pytest.mark.parametrize("seed", cases(60))
def test_equal_definitions_need_no_mapping(seed, tmp_path):
    """Steps of one length back to back, all startup recorded, a death in the middle of a step, a finish after one:
    availability is the peer's goodput, the first step's excess its program startup, and a disruption costs the same.
    """
    random = Random(seed)
    lives, at, resume = [], 0, -1
    for left in reversed(range(random.randint(1, 5))):
        parts = {"loader": 200, "forward": random.randint(300, 3_000), "communication": 150}
        count = random.randint(3, 9)
        steps = [Step(resume + 1 + i, dict(parts)) for i in range(count)]
        steps[0].parts_ms["forward"] += random.randint(0, 30_000)
        startup = [("tpu_init", random.randint(1, 9_000)), ("training_preparation", random.randint(1, 9_000))]
        life = Life(at, startup, steps, resume=resume, end="killed" if left else "finished")
        if left:
            life.open_ms, life.silence_ms = {"forward": random.randint(1, 900)}, random.randint(0, 900)
            # At least two steps are kept: from one alone the peer takes no startup.
            resume = random.randint(steps[1].index, steps[-1].index)
        lives.append(life)
        at = life.end_ms() + random.randint(0, 90_000)
    answer = ask(lives, lives[-1].end_ms(), tmp_path)
    mine = ours(lives, lives[-1].end_ms())
    assert {move[0] for move in moves(lives, 0)} <= {
        "death"
    }  # which only parts what is compared as one below
    found = account_of(lives, lives[-1].end_ms())
    assert found.ratio("availability") == pytest.approx(answer["goodput"], abs=1e-9)
    assert mine["compile"] == pytest.approx(answer["PROGRAM_STARTUP"], abs=CLOSE)
    disruption = ("WASTED_PROGRESS_FROM_DISRUPTION", "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION")
    startup = answer["TPU_INITIALIZATION"] + answer["TRAINING_PREP"]
    theirs = sum(answer.get(kind, 0.0) for kind in disruption) + startup
    assert mine["lost"] + mine["pause"] == pytest.approx(theirs, abs=CLOSE)
    assert len(found.restarts) == answer["disruptions"] == len(lives) - 1


def worked_example() -> list[Life]:
    """Rank 0 of docs/example-run.jsonl, as docs/definitions.md works it out by hand."""
    plain = {"loader": 1_000, "forward": 1_000, "backward": 2_000, "communication": 1_000}
    first = {**plain, "forward": 4_000}
    save = {"checkpoint": 2_000}
    one = [
        Step(0, first),
        Step(1, plain),
        Step(2, plain),
        Step(3, plain, save),
        Step(4, plain),
        Step(5, plain),
    ]
    two = [Step(4, first), Step(5, plain), Step(6, plain), Step(7, plain), Step(8, plain, save)]
    return [
        Life(0, [("tpu_init", 10_000)], one, {"loader": 1_000, "forward": 2_000}, saved={3: True}),
        Life(
            58_000,
            [("tpu_init", 4_000), ("training_preparation", 2_000)],
            two,
            end="finished",
            resume=3,
            saved={8: True},
        ),
    ]


def test_worked_example_of_the_definitions(tmp_path):
    lives = worked_example()
    answer = ask(lives, 94_000, tmp_path)
    assert answer["total"] == pytest.approx(94)
    assert answer["productive"] == pytest.approx(45 + 2 / 3)
    assert answer["goodput"] == pytest.approx((45 + 2 / 3) / 94)
    assert answer["PROGRAM_STARTUP"] == pytest.approx(2 + 1 / 3 + 3)
    assert answer["UNPRODUCTIVE_CHECKPOINT_SAVE_TIME"] == pytest.approx(4)
    assert answer["WASTED_PROGRESS_FROM_DISRUPTION"] == pytest.approx(10)
    assert answer["INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION"] == pytest.approx(13)
    assert (answer["TPU_INITIALIZATION"], answer["TRAINING_PREP"]) == pytest.approx((14, 2))
    assert answer["disruptions"] == 1
    states = of_rank(account_of(lives, 94_000))
    assert (states["lost"], states["down"], states["startup"], states["restore"]) == (13, 10, 14, 2)
    assert (states["compile"], states["checkpoint"]) == (6, 4)
    assert account_of(lives, 94_000).ratio("availability") == 45 / 94


def test_example_run_is_the_worked_example():
    log = Path(__file__).parents[2] / "docs" / "example-run.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    declared = [line for line in lines if line.get("rank") == 0 and line["kind"] == "step"]
    done = [
        (number, step.index, (at + step.length_ms()) / 1e3, seconds_of(step.parts_ms))
        for number, life in enumerate(worked_example(), 1)
        for step, at in life.timed()
    ]
    assert [(one["attempt"], one["step"], one["time"], one["phases"]) for one in declared] == done
    starts = [line["time"] for line in lines if line["kind"] == "attempt" and line["rank"] == 0]
    assert starts == [life.start_ms / 1e3 for life in worked_example()]
    assert {line["time"] for line in lines if line["kind"] in ("beat", "end")} == {48, 94}


def steps(first: int, last: int) -> list[Step]:
    return [Step(index, {"forward": 2_000}) for index in range(first, last + 1)]


def test_peer_keeps_credit_for_redone_work(tmp_path):
    """A second restart from before the first one's resume point: the peer goes on counting what was then undone.

    Steps 0 to 7, again from 6 and dead in 7, then again from 2: of the first life only steps 0 and 1 were of use.
    """
    lives = [
        Life(0, [("tpu_init", 1_000)], steps(0, 7), {"forward": 1_000}),
        Life(20_000, [("tpu_init", 1_000)], steps(6, 6), {"forward": 2_000}, resume=5),
        Life(30_000, [("tpu_init", 1_000)], steps(2, 4), end="finished", resume=1),
    ]
    answer, states = ask(lives, 37_000, tmp_path), of_rank(account_of(lives, 37_000))
    # Kept here: steps 0 and 1 of the first life, 2 to 4 of the last. Lost: 6 steps and a second, 1 step and 2 seconds.
    assert (states["productive"], states["lost"]) == (2 * 2 + 3 * 2, 6 * 2 + 1 + 1 * 2 + 2)
    # There: step 2 is none that began since the restart at 6, so the third start is not seen. Productive are steps 0
    # to 5 of the first life (12), 6 of the second (2), 2 and 3 of the third (4), and since the highest step begun is
    # still the second life's 7, at 23 s, from there to the job's end (14).
    assert answer["disruptions"] == 1
    assert answer["productive"] == pytest.approx(12 + 2 + 4 + 14)


def test_peer_counts_no_disruption_at_checkpoints(tmp_path):
    """Stopped on purpose right after saving, and gone on with a minute later: the peer calls the minute productive."""
    lives = [
        Life(0, [("tpu_init", 1_000)], steps(0, 3), end="finished", saved={3: True}),
        Life(69_000, [("tpu_init", 1_000)], steps(4, 6), end="finished", resume=3),
    ]
    answer, account = ask(lives, 76_000, tmp_path), account_of(lives, 76_000)
    assert (of_rank(account)["down"], of_rank(account)["productive"]) == (60, 14)
    assert answer["productive"] == pytest.approx(14 + 61)
    assert (len(account.restarts), answer["disruptions"]) == (1, 0)
    theirs = mapped(answer, lives, 76_000)
    assert (theirs["kept"], theirs["pause"]) == pytest.approx((14, 62))
