"""Progress by an account, against numbers worked by hand."""

import pytest
from support.account.account_history import Process, account_of

from goodput.account import document
from goodput.causes import explain
from goodput.progress.estimate import progress_of, remaining_seconds
from goodput.progress.kubeflow import body
from goodput.progress.line import clock, eta_text, line


def found(*processes, now, **given):
    account = account_of(*processes, now=now, **given)
    return {**document(account, explain(account)), "hang": None}


def training(**given):
    return Process(0, 1, world_size=1, total_steps=100, **given).between(none=10)


def test_start_is_not_expected_again():
    """10 s of start, 20 steps of 1 s: 80 steps are 80 s."""
    progress = progress_of(found(training().steps(20, forward=1), now=30), 1.0)
    assert (progress.done, progress.total, progress.share) == (20, 100, 0.2)
    assert progress.remaining_seconds == pytest.approx(80)


def test_checkpoints_are_expected_as_often_as_so_far():
    """5 s after every tenth of 20 steps of 1 s: a step costs 1.5 s."""
    one = training()
    for _ in range(2):
        one.steps(10, forward=1).between(checkpoint=5).saved()
    assert remaining_seconds(found(one, now=40)) == pytest.approx(80 * 1.5)


def test_restarts_are_expected_as_often_as_so_far():
    """20 steps, of which 10 are lost, 4 s down, 6 s of a second start, 10 steps again: a kept step costs 2 s."""
    first = training().steps(10, forward=1).saved().steps(10, forward=1).killed(after=0)
    second = Process(0, 2, 34, world_size=1, total_steps=100).between(none=6).resumed(9).steps(10, forward=1)
    document = found(first, second, now=50)
    assert document["steps"] == {"kept": 20, "lost": 10}
    progress = progress_of(document)
    assert (progress.done, progress.restarts) == (20, 1)
    assert progress.remaining_seconds == pytest.approx(80 * 2)


def test_unknown_without_total_and_while_it_hangs():
    one = Process(0, 1, world_size=1).between(none=10).steps(20, forward=1)
    assert progress_of(found(one, now=30)).remaining_seconds is None
    hung = {**found(training().steps(20, forward=1), now=30), "hang": {"reason": "…"}}
    assert progress_of(hung).remaining_seconds is None
    over = found(training().steps(20, forward=1).finished(), now=30)
    assert (remaining_seconds(over), eta_text(progress_of(over))) == (0.0, "")


@pytest.mark.parametrize("status", ["failed", "cancelled", "abandoned"])
def test_unknown_where_a_run_ended_without_finishing(status):
    """It may be started again; it has not 0 seconds to go."""
    ended = {**found(training().steps(20, forward=1), now=30), "status": status}
    progress = progress_of(ended)
    assert (progress.remaining_seconds, remaining_seconds(ended), eta_text(progress)) == (None, None, "")
    assert "estimatedRemainingSeconds" not in body(progress, 0.0)["trainerStatus"]


def test_line_keeps_what_fits():
    progress = progress_of(found(training().steps(20, forward=1), now=30), 0.5)
    whole = "r1: step 20/100 20.0 %, 2.0 s a step, ETA 80 s, goodput 66.7 %"
    assert line(progress, 100) == whole
    short = "r1: 20/100, 2.0 s a step, ETA 80 s, goodput 67 %"
    assert line(progress, len(whole) - 1) == line(progress, len(short)) == short
    assert line(progress, len(short) - 1) == "r1: 20/100, 2.0 s a step, ETA 80 s"
    assert line(progress, 5) == "r1: 2"


def test_all_figures_fit_80_columns():
    """The line of a terminal has a space on each side."""
    progress = progress_of(found(training().steps(20, forward=1), now=30), 3.2)
    progress = progress._replace(
        run="my-job", done=1240, total=50_000, remaining_seconds=15_600.0, goodput=0.913
    )
    progress = progress._replace(slowest_rank=5, slowest_because="loader")
    assert (
        line(progress, 78) == "my-job: 1240/50000, 3.2 steps/s, ETA 4 h 20 min, goodput 91 %, slowest rank 5"
    )
    assert line(progress, 160) == (
        "my-job: step 1240/50000 2.5 %, 3.2 steps/s, ETA 4 h 20 min, goodput 91.3 %, slowest rank 5 (loader)"
    )


def test_clock():
    assert [clock(s) for s in (0, 99, 100, 5940, 12_000, 187_200)] == [
        *("0 s", "99 s", "2 min", "99 min", "3 h 20 min", "2 d 4 h"),
    ]
