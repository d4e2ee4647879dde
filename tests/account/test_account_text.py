"""The account as text: percentages that close, one line per finding, advice for every cause."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.account.account_history import Process, ns, run_of

from goodput.account import compute, document
from goodput.account.states import MEANINGS, STATES
from goodput.account.text import dollars, duration, more_than_rank, render, state_rows, tenths
from goodput.causes import advisers, explain


def text_of(*processes, now=100.0):
    account = compute(run_of(*processes), ns(now))
    found = document(account, explain(account))
    return found, render(found, full=True)


def test_tenths_round_each_part_by_itself():
    assert tenths([1, 1, 1]) == [333, 334, 333]
    assert tenths([0, 1, 1, 1]) == [0, 334, 333, 333]
    assert tenths([1005, 1005, 0, 7990]) == [101, 100, 0, 799]
    assert tenths([2, 1, 0]) == [667, 333, 0]
    assert tenths([0.0004, 999.9996]) == [0, 1000]
    assert tenths([]) == [] and tenths([0, 0]) == [0, 0]


@settings(max_examples=200)
@given(st.lists(st.floats(0, 1e15), max_size=17))
def test_tenths_sum_to_a_thousand(parts):
    rounded = tenths(parts)
    total = sum(parts)
    assert sum(rounded) == (1000 if total > 0 else 0)
    assert all(abs(r - 1000 * part / total) <= 1 for r, part in zip(rounded, parts, strict=True) if total > 0)


def test_table_closes_and_fits_a_terminal():
    ranks = [
        Process(r, world_size=3, flops_per_step=1e12, peak_flops_per_second=4e12)
        .between(none=2)
        .steps(8, loader=0.3 * r + 0.1, forward=1, communication=0.6 - 0.3 * r)
        .finished()
        for r in (0, 1, 2)
    ]
    found, text = text_of(*ranks)
    flat = " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80
    assert "run r1: finished, 3 ranks, 15.6 s, 46.8 GPU-seconds" in text
    assert sum(float(row[2]) for row in state_rows(found)) == pytest.approx(100.0)
    assert (
        "slow rank: 2 on n2 (loader), which explains 100.0 % of the waiting; steps take 1.21x as long" in flat
    )
    assert f"MFU {100 * 8 / (4 * 15.6):.1f} %" in text
    # Loader 8 × (0.1 + 0.4 + 0.7) s, startup 3 × 2 s, straggler 8 × (0.6 + 0.3) s.
    assert (
        "largest cause: loader, 20.5 % of all GPU time; without it the run would be 1.26x as fast, by its share alone"
        in flat
    )


def test_each_known_figure_has_a_line():
    """Two ranks of two stages: 12 steps of 2 s, a checkpoint after each fourth, killed, 5 s down, 8 more steps."""
    declared = {"flops_per_step": 1e12, "hardware_flops_per_step": 1.5e12, "peak_flops_per_second": 2e12}
    declared |= {
        "gpu_hour_cost": 36.0,
        "gpu_power_watts": 1000.0,
        "microbatches": 3,
        "ideal_samples_per_second": 10.0,
    }

    def steps(one, count):
        for i in range(count):
            one.step(samples=8, forward=1.5, communication=0.5)
            if i % 4 == 3:
                one.between(checkpoint=0.5).saved()
        return one

    pairs = [
        (
            steps(Process(r, stage=r, **declared), 12).killed(),
            steps(
                Process(r, attempt=2, start=30.5, stage=r, **declared).between(none=1).resumed(11), 8
            ).finished(),
        )
        for r in (0, 1)
    ]
    found, text = text_of(*(one for pair in pairs for one in pair), now=60)
    flat = " ".join(text.split())
    wall = 30.5 + 1 + 8 * 2 + 2 * 0.5
    assert max(map(len, text.splitlines())) <= 80
    assert f"HFU {100 * 20 * 1.5 / (2 * wall):.1f} %, which counts recomputation" in flat
    assert (
        f"throughput goodput {100 * 16 / wall:.1f} %: {320 / wall:.4g} samples per second of 20 (given)"
        in flat
    )
    assert (
        "pipeline of 2 stages: 25.0 % of kept steps is waiting; 25.0 % cannot be avoided with 3 micro" in flat
    )
    # Alive for 25.5 s and 18 s, 5 checkpoints, one failure: sqrt(2 x 0.5 x 43.5) s, too short a run to say so.
    assert "saving takes 0.50 s each 8.5 s cost" in flat
    cost, idle = 2 * wall / 100, 2 * (wall - 30) / 100
    assert (
        f"cost ${cost:.4f}, ${idle:.4f} of it not productive; energy {2 * wall / 3600:.3g} kWh (estimate)"
        in flat
    )
    # 5 s down, 1 s of startup, and 0.5 s of saving after the last step of the killed, for two GPUs.
    assert "restart 1: down 5.00 s, 0 steps lost" in text and "in all 13.00 GPU-seconds ($0.1300)" in flat
    advice = next(cause["advice"] for cause in found["causes"] if cause["state"] == "checkpoint")
    assert "interval of 8.5 s is near the best for the failures seen, 6.6 s (estimate)" in advice


def test_one_checkpoint_has_no_interval():
    text = text_of(Process().steps(3, forward=1).between(checkpoint=0.25).saved().finished(), now=9)[1]
    assert "checkpoints: saving takes 0.25 s, 1 committed\n" in text


def test_unknown_figures_have_no_line():
    text = text_of(Process().steps(5, forward=1).finished(), now=9)[1]
    for word in ("HFU", "throughput", "pipeline", "checkpoints", "cost", "energy", "wrong input", "restart"):
        assert word not in text, word


def test_wrong_input_comes_before_the_table():
    declared = {"flops_per_step": 4e12, "peak_flops_per_second": 1e12}
    lines = text_of(Process(**declared).steps(5, forward=1).finished(), now=9)[1].splitlines()
    assert lines[4].startswith("  wrong input: MFU of 400 % is above 100 %")
    table = next(i for i, line in enumerate(lines) if "GPU-seconds" in line and "percent" in line)
    assert table > 5 and lines[table - 1] == "" and "MFU unknown" in "".join(lines)
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    "save, every, word", [(0.02, 40, "more"), (4.0, 5, "less"), (0.5, 10, "near")], ids=str
)
def test_checkpoint_advice_gives_the_direction(save, every, word):
    """80 steps of 1 s, killed, 20 more: the time between failures is that and the saving."""
    one = Process()
    for _ in range(80 // every):
        one.steps(every, forward=1).between(checkpoint=save).saved()
    two = Process(attempt=2, start=200).between(none=1).resumed(79).steps(20, forward=1).finished()
    found, text = text_of(one.killed(), two, now=300)
    advice = next(cause["advice"] for cause in found["causes"] if cause["state"] == "checkpoint")
    alive = 80 + 80 // every * save + 21
    best, now = duration((2 * save * alive) ** 0.5), duration(every + save)
    change = (
        f", and {word} often: every {best} instead of every {now} is best for the failures seen (estimate)."
    )
    near = f"The interval of {now} is near the best for the failures seen, {best} (estimate)."
    assert advice.endswith(near if word == "near" else change), advice
    shown = (2 * save * alive) ** 0.5 >= 10
    text = " ".join(text.split())
    assert f"saving takes {duration(save)} each {now}" in text and shown == (save >= 0.5)
    assert (f"each {now}; the best interval for the failures seen is {best}" in text) == shown


def test_short_best_interval_needs_a_long_run():
    def text(pause):
        one = Process().steps(20, forward=1).between(checkpoint=0.02).saved().killed()
        two = Process(attempt=2, start=20 + pause).resumed(19).steps(20, forward=1).finished()
        return " ".join(text_of(one, two, now=1000)[1].split())

    assert "best interval" not in text(500) and "best interval for the failures seen is 1.3 s" in text(570)


def cause_lines(*processes, **options) -> str:
    text = text_of(*processes, **options)[1]
    return " ".join(text[text.rindex("\n\n") :].split())


def test_short_run_names_its_steps_first():
    """20 s of startup, then 5 steps of 1.5 s and a checkpoint: each further step costs 0.5 s of loader."""
    one = Process(total_steps=100).between(none=20).steps(3, forward=1, loader=0.5).between(checkpoint=4)
    one.steps(2, forward=1, loader=0.5).finished()
    found = text_of(one)[0]
    assert [cause["state"] for cause in found["causes"]] == ["startup", "checkpoint", "loader"]
    assert found["advice_order"] == ["checkpoint", "loader", "startup"]
    # 11.5 s of 5 steps and a checkpoint are 230 s in 100 of them, after 20 s of startup.
    assert found["whole_run"] == {
        "steps": 100, "basis": "declared", "done": 5, "seconds": 250.0, "gpu_seconds": 250.0
    }  # fmt: skip
    whole = {cause["state"]: cause["whole_run_gpu_seconds"] for cause in found["causes"]}
    assert whole == {"startup": 20.0, "checkpoint": 80.0, "loader": 50.0}
    lines = cause_lines(one)
    assert lines.startswith(
        "largest recurring cause: checkpoint, 12.7 % of all GPU time; without it the run would be 1.15x as fast, by its share "
        "alone over the whole run of 100 steps: 32.0 %, 80 s of 4.2 min GPU time; by that share without it 1.47x as fast "
        "(an estimate) advice: "
    )
    assert (
        "paid once, at the run's start and end: startup 63.5 %; over the whole run of 100 steps, 8.0 % (an estimate)"
        in lines
    )


def test_undeclared_length_is_a_typical_one():
    lines = cause_lines(Process().between(none=20).steps(50, forward=1, loader=0.5).finished())
    assert (
        lines.startswith("largest cause: loader")
        and (
            "in a run of 10,000 steps (a typical length, since total_steps is not declared): 33.3 %, 83 min of 4.2 h"
        )
        in lines
    )
    # Startup takes 20 s in more than four hours, so there is no advice on it.
    assert lines.endswith(
        "paid once, at the run's start and end: startup 21.1 %; in a run of 10,000 steps, 0.1 % (an estimate)"
    )


def test_small_share_now_may_lead_the_whole_run():
    """5 steps of 0.14 s after 20 s: 40 ms of loader are 0.8 % so far, and more than a quarter of 10,000 steps."""
    lines = cause_lines(Process().between(none=20).steps(5, forward=0.1, loader=0.04).finished())
    assert (
        lines.startswith("largest recurring cause: loader, 1.0 %") and "): 28.2 %, 6.7 min of 24 min" in lines
    )


def test_end_of_a_finished_run_is_paid_once():
    """The final checkpoint is the only one, and the process takes 2 s to end; evaluations come after every 5 steps."""
    one = Process(total_steps=1000).between(none=3)
    for _ in range(2):
        one.steps(5, forward=1).between(evaluation=1)
    one.between(checkpoint=4).between(none=2).finished()
    found = text_of(one)[0]
    once = {cause["state"]: cause["once_gpu_seconds"] for cause in found["causes"]}
    assert once == {"checkpoint": 4.0, "startup": 3.0, "unattributed": 2.0, "evaluation": 0.0}
    assert found["advice_order"][0] == "evaluation"
    # 12 s of 10 steps recur: 1 200 s, and 9 s do not.
    assert found["whole_run"]["gpu_seconds"] == 1209.0


def test_end_of_a_running_run_recurs():
    one = Process().between(none=3).steps(16, forward=1).between(checkpoint=4)
    found = text_of(one, now=23)[0]
    once = {cause["state"]: cause["once_gpu_seconds"] for cause in found["causes"]}
    assert found["status"] == "running" and once == {"checkpoint": 0.0, "startup": 3.0}


def test_run_at_its_length_has_no_estimate():
    lines = cause_lines(Process(total_steps=50).between(none=20).steps(50, forward=1, loader=0.5).finished())
    assert "run of" not in lines and lines.startswith("largest cause: loader")


def test_startups_of_restarts_recur():
    """Twenty restarts after which startup takes most of the time: it is no cost of the first start alone."""
    lives = [
        Process(attempt=n, start=30 * n)
        .resumed(2 * n - 1)
        .between(none=20)
        .steps(2, forward=4.5, loader=0.5)
        .killed()
        for n in range(20)
    ]
    found, text = text_of(*lives, now=600)
    assert found["advice_order"][0] == "startup" and "largest cause: startup" in text
    startup = found["causes"][0]
    assert (startup["gpu_seconds"], startup["once_gpu_seconds"]) == (400.0, 20.0)


def test_failures_come_before_the_first_start():
    one = Process().between(none=50).steps(5, forward=1, loader=1).killed()
    two = Process(attempt=2, start=90).resumed(4).steps(5, forward=1).finished()
    assert text_of(one, two)[0]["advice_order"] == ["down", "loader", "startup"]


def test_only_cause_may_be_the_first_start():
    lines = cause_lines(Process().between(none=20).steps(5, forward=1, loader=0.01).finished())
    assert lines.startswith("largest cause: startup, 79.8 % of all GPU time; without it")
    assert "paid once" not in lines and "in the steps:" not in lines


def slow_host(ranks: int = 16) -> list[Process]:
    """Ranks on hosts of four; those of h1 take turns at being slow, rank 4 most often. Each host is a stage."""
    group = [Process(r, host=f"h{r // 4}", stage=r // 4, world_size=ranks) for r in range(ranks)]
    for step in range(60):
        slow = 4 if step % 10 < 8 else 5
        for one in group:
            one.step(forward=1.5 if one.rank == slow else 1, communication=0 if one.rank == slow else 0.5)
    return [one.finished() for one in group]


def test_slow_host_and_its_start_are_named():
    found, text = text_of(*slow_host())
    flat, straggler = " ".join(text.split()), found["straggler"]
    assert (straggler["culprit"], straggler["hosts"][0]) == (4, {"host": "h1", "share": 1.0})
    share = straggler["shares"][0]["share"]
    assert f"explains {100 * share:.1f} % of the waiting (all of h1 100.0 %, all of stage 1 100.0 %)" in flat
    assert "slow rank: 4 on h1 (productive, forward) from the start, which" in flat
    advice = next(cause["advice"] for cause in found["causes"] if cause["state"] == "straggler")
    assert "rank 4 on h1 from the start (100 % for all ranks on h1): its" in advice
    assert len(advice) < 250


def test_host_is_named_if_it_explains_more():
    assert more_than_rank(0.5, [("a", 0.9), ("b", 0.1)], 2) == ("a", 0.9)
    assert more_than_rank(0.5, [("a", 0.9)], 1) is None and more_than_rank(0.5, [], 2) is None
    assert more_than_rank(0.88, [("a", 0.9)], 2) is None


def test_durations_and_dollars_have_significant_digits():
    seconds = (
        0,
        0.013,
        0.0994,
        0.0996,
        0.25,
        0.994,
        0.996,
        2,
        9.94,
        9.96,
        42,
        119,
        150,
        7199,
        7200,
        86400,
        1e6,
        1e7,
    )
    expected = ["0 ms", "13 ms", "99.4 ms", "0.10 s", "0.25 s", "0.99 s", "1.0 s"]
    expected += ["2.0 s", "9.9 s", "10 s", "42 s", "119 s", "2.5 min", "120 min", "2.0 h", "24 h"]
    assert [duration(one) for one in seconds] == [*expected, "12 d", "116 d"]
    assert [dollars(one) for one in (0, 0.0001, 0.0188, 1234.5)] == [
        "$0.000000",
        "$0.000100",
        "$0.0188",
        "$1,234.50",
    ]


def test_restarts_have_their_resume_step():
    one = Process().steps(5, forward=1).killed()
    two = Process(attempt=2, start=7).resumed(2).step(forward=1).killed()
    three = Process(attempt=3, start=9).resumed(-1).step(forward=1).killed()
    text = " ".join(text_of(one, two, three, now=12)[1].split())
    assert "restart 1: down 2.00 s, 2 steps lost (2.00 GPU-seconds), resumed after step 2" in text
    assert "restart 2: down 1.00 s, 4 steps lost (4.00 GPU-seconds), resumed from the beginning" in text
    assert " 2 restarts: 9.00 GPU-seconds in all" in text and "$" not in text
    unknown = text_of(Process().steps(5, forward=1).killed(), Process(attempt=2, start=7), now=8)[1]
    unknown = " ".join(unknown.split())
    assert "resumed at an unknown step" in unknown and "None" not in unknown


def test_unknown_factors_are_named():
    text = text_of(Process().between(none=3), now=3)[1]
    assert "step efficiency unknown" in text and "MFU unknown: the FLOPs of a step are not known" in text


def test_unknown_mfu_says_what_is_missing():
    def unknown(**fields):
        account = text_of(Process(**fields).steps(5, forward=1), now=5)
        return " ".join(account[1].split("MFU unknown: ")[-1].split())

    assert unknown().startswith("the FLOPs of a step are not known; goodput.auto counts")
    reported = unknown(flops_unknown="no formula for aten.special")
    assert reported.startswith(
        "the FLOPs of a step are not known: no formula for aten.special. Give flops_per_step"
    )
    assert unknown(flops_per_step=1e9).startswith("the device is not known: give device and dtype")
    listed = unknown(flops_per_step=1e9, device="Abacus 1", dtype="bf16")
    assert listed.startswith("no peak of Abacus 1 in bf16 is known: give peak_flops_per_second")


def test_every_idle_state_has_a_cause():
    assert set(advisers()) == set(STATES) - {"productive"}
    assert set(MEANINGS) == set(STATES)


def test_advice_is_one_line_for_every_state():
    account = compute(run_of(Process().steps(2, forward=1).finished()), ns(9))
    for index, state in enumerate(STATES):
        account.ranks[0].states[index] += ns(1)
        account = replace(account, end_ns=account.end_ns + ns(1))
        found = {cause["state"]: cause for cause in explain(account)}
        if state != "productive":
            advice = found[state]["advice"]
            assert advice.endswith(".") and "\n" not in advice and 20 < len(advice) < 250
    weights = [cause["gpu_seconds"] for cause in explain(account)]
    assert weights == sorted(weights, reverse=True) and len(weights) == len(STATES) - 1


def test_loader_advice_for_one_rank_and_all():
    def advice(*waits):
        ranks = [Process(r).step(forward=1, loader=wait).finished() for r, wait in enumerate(waits)]
        return next(c["advice"] for c in text_of(*ranks)[0]["causes"] if c["state"] == "loader")

    assert "ank 2 on n2 waits" in advice(0.1, 0.1, 5)
    assert "All ranks wait" in advice(1, 1.5, 2)
    assert "The rank waits for its loader" in advice(5)


def test_lost_advice_has_the_counts():
    one = Process().steps(5, forward=1).killed()
    two = Process(attempt=2, start=7).resumed(2).step(forward=1).finished()
    advice = next(c["advice"] for c in text_of(one, two)[0]["causes"] if c["state"] == "lost")
    assert advice.startswith("2 rank-steps were lost in 1 restart:")


def test_lost_steps_of_a_failed_run_have_no_restart():
    one = Process().steps(10, forward=1).saved().steps(3, forward=1).failed()
    advice = next(c["advice"] for c in text_of(one)[0]["causes"] if c["state"] == "lost")
    assert advice.startswith(
        "3 rank-steps after its last committed checkpoint are lost: save checkpoints more often"
    )
