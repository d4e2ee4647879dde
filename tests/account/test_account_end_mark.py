"""The account of a run with an end mark, by hand-worked numbers."""

from __future__ import annotations

import pytest
from support.account.account_history import Process, assert_closes, ns, of_rank, run_of

from goodput.account import ABANDONED, Account, EndMark, compute

STALE = 30.0
LATER = 10_000


def pair() -> list[Process]:
    """Two ranks: 10 steps of 1 s, a checkpoint after the sixth, 0.5 s into the next one."""
    ranks = [Process(rank, world_size=2) for rank in range(2)]
    for one in ranks:
        one.steps(6, forward=1).saved().steps(4, forward=1).begun(forward=0.5)
    return ranks


def account(
    *ranks: Process, over: EndMark | None = None, at: float = LATER, marked: int = 2, **given
) -> Account:
    """The account at `at` seconds, with the end mark `over` on the first `marked` ranks."""
    run = run_of(*ranks)
    for attempt in list(run.attempts.values())[:marked]:
        attempt.end_mark = over
    found = compute(run, ns(at), stale_seconds=STALE, known_only=True, **given)
    assert_closes(found, elastic=True)
    return found


def mark(reason: str = "cancelled", at: float = 0, until: float = 100) -> EndMark:
    return EndMark(reason, ns(at), ns(until))


@pytest.mark.parametrize("reason", ["cancelled", "failed"])
def test_cancelled_run_stops_counting(reason):
    ranks = [one.killed(after=1) for one in pair()]
    unmarked = account(*ranks)
    assert (unmarked.status, unmarked.end_ns, unmarked.may_restart) == ("failed", ns(11.5), True)
    found, later = (account(*ranks, over=mark(reason), at=at) for at in (12, LATER))
    assert found == later and found.end_ns == ns(11.5) and found.status == reason
    assert found.is_settled() and not unmarked.is_settled()
    # Four steps after the checkpoint and the unfinished one are lost, as of any run that fails.
    assert of_rank(found) == {"productive": 6, "lost": 5.5}


def test_run_marked_finished_keeps_its_steps():
    ranks = [one.killed(after=1) for one in pair()]
    found = account(*ranks, over=mark("finished"))
    assert (found.status, found.failures) == ("finished", 0)
    # The unfinished step is neither productive nor lost.
    assert of_rank(found) == {"productive": 10, "unattributed": 1.5}


def test_silent_run_ends_when_last_alive():
    ranks = [one.silent(after=3) for one in pair()]
    assert account(*ranks).status == "unobserved"
    found = account(*ranks, over=mark())
    assert (found.status, found.end_ns) == ("cancelled", ns(13.5)) and "unobserved" not in of_rank(found)


@pytest.mark.parametrize(("at", "end"), [(5, 11.5), (11.5, 11.5), (40, 40)])
def test_end_is_not_before_the_last_life(at, end):
    """A process that was seen dead is down until the run's allocation ends; one that fell silent may have gone on."""
    ranks = [one.killed(after=1) for one in pair()]
    found = account(*ranks, over=mark(at=at))
    assert found.end_ns == ns(end) and of_rank(found)["lost"] == 5.5
    assert of_rank(found).get("down", 0) == end - 11.5
    silent = account(*[one.silent(after=1) for one in pair()], over=mark(at=at))
    assert silent.end_ns == ns(end) and of_rank(silent) == {"productive": 6, "lost": end - 6}


def test_cancelled_hang_is_stall_until_its_end():
    ranks = [one.killed(after=3600) for one in pair()]
    found = account(*ranks, over=mark(until=5000))
    assert found.end_ns == ns(3610.5) and of_rank(found)["stall"] == 3600.5


def test_reported_ends_take_precedence():
    """One reported its failure, the other was killed: the end mark gives the status of the run."""
    failed, killed = pair()
    failed.failed(), killed.killed(after=2)
    found = account(failed, killed, over=mark(at=20))
    assert found.status == "cancelled" and found.failures == 1 and found.end_ns == ns(20)
    assert of_rank(found, 0)["down"] == 20 - 10.5 and of_rank(found, 1)["down"] == 20 - 12.5
    assert account(*[one.killed() for one in pair()], over=mark()).failures == 0, (
        "a cancelled run has not failed"
    )
    assert account(*[one.killed() for one in pair()], over=mark("failed")).failures == 1
    finished = [one.finished() for one in pair()]
    assert account(*finished, over=mark()).status == "finished", "they had finished"


def test_late_first_report_keeps_the_end():
    """The agent of one rank could not reach the aggregator before; its first report is of the same attempt."""
    ranks = [one.killed(after=1) for one in pair()]
    assert account(*ranks, over=mark(), marked=1).status == "cancelled"
    alive = pair()[1].silent(after=5000)
    found = account(ranks[0], alive, over=mark(), marked=1, at=alive.now_ns / 1e9)
    assert found.status == "running", "the other rank is alive"


@pytest.mark.parametrize("life", ["alive", "killed", "step", "boundary"])
def test_life_after_the_end_mark_cancels_it(life):
    ranks = pair()
    for one in ranks:
        if life == "alive":
            one.silent(after=95)
        elif life == "killed":
            one.killed(after=95)
        elif life == "step":
            # Late rows of a rank whose death has not been reported.
            one.step(forward=95).last_ns = ns(10)
            one.now_ns, one.alive = ns(10), False
        else:
            one.begun(loader=95).killed().end_ns = 0
    at = ranks[0].rows[-1].end_ns / 1e9 if life == "step" else ranks[0].now_ns / 1e9
    assert account(*ranks, over=mark(), at=at) == account(*ranks, at=at)
    assert account(*ranks, over=mark(until=at), at=at).status == "cancelled"


def again(start: float, **given) -> list[Process]:
    """Both ranks from their checkpoint on, for four steps."""
    return [
        Process(rank, 2, start, world_size=2, **given).resumed(5).steps(4, forward=1) for rank in range(2)
    ]


@pytest.mark.parametrize(
    ("at", "submit", "gone"), [(0, None, {}), (20, None, {"down": 8.5}), (20, 45, {"down": 8.5, "queue": 15})]
)
def test_no_time_between_two_allocations(at, submit, gone):
    """Died at 11.5 s, declared over, started again at 60 s: what is between was nobody's, but for the queue.

    Six and four steps of 1 s are kept; how much of the first one of the second attempt was compiling is not known yet.
    """
    ranks = [one.killed(after=1) for one in pair()]
    new = again(60, submit_time=None if submit is None else float(submit))
    found = account(*ranks, *new, over=mark(at=at), at=64)
    assert found.status == "running" and of_rank(found) == {
        "productive": 9,
        "compile": 1,
        "lost": 5.5,
        **gone,
    }
    (restart,) = found.restarts
    assert restart.down_gpu_ns == 2 * ns(gone.get("down", 0))
    assert found.allocated_ns == ns(64 - 60 + 11.5 + sum(gone.values()))
    assert of_rank(account(*ranks, *new, at=64))["down"] == (33.5 if submit else 48.5), (
        "nobody declared it over"
    )
    part = account(*ranks, *new, over=mark(at=at), at=64, window=(ns(30), ns(62)))
    assert of_rank(part) == {"productive": 1, "compile": 1} | ({"queue": 15} if submit else {})


def test_end_of_an_earlier_attempt_needs_all_marks():
    """One rank has shown life since, or was never marked: the processes may have been held until the next attempt."""
    ranks = [one.killed(after=1) for one in pair()]
    assert of_rank(account(*ranks, *again(60), over=mark(), marked=1, at=64))["down"] == 48.5
    assert of_rank(account(*ranks, *again(60), over=mark(until=5), at=64))["down"] == 48.5


def test_finished_ranks_with_marks_release_their_gpus():
    ranks = [one.finished() for one in pair()]
    assert of_rank(account(*ranks, *again(60), over=mark("finished"), at=64)).get("down", 0) == 0


DAY = 86_400


def abandoned(*ranks: Process) -> EndMark:
    """As the aggregator sets it a day after the last sign of life, which the next one undoes."""
    last = max(one.now_ns for one in ranks)
    return EndMark(ABANDONED, last + ns(DAY), last)


def test_abandoned_run_stops_counting():
    """Its account stays as it was when the limit had passed: nothing is taken back, nothing is lost that was not."""
    ranks = [one.silent(after=1) for one in pair()]
    end = 11.5 + DAY
    before = account(*ranks, at=end)
    assert before.status == "unobserved"
    found, later = (account(*ranks, over=abandoned(*ranks), at=at) for at in (end, 10 * DAY))
    assert found == later and (found.status, found.end_ns) == ("abandoned", ns(end))
    assert of_rank(found) == of_rank(before) and found.failures == before.failures
    assert of_rank(found)["unobserved"] == DAY


def test_abandoned_failure_stays_a_failure():
    """How and when it ended is known; that nobody started it again only says that nobody may be about to."""
    ranks = [one.killed(after=1) for one in pair()]
    before, found = (account(*ranks, over=over, at=3 * DAY) for over in (None, abandoned(*ranks)))
    assert (found.status, found.end_ns, of_rank(found)) == ("failed", ns(11.5), of_rank(before))
    assert before.may_restart and not found.may_restart and found.is_settled()


def test_abandoned_run_with_a_dead_and_a_silent_rank():
    dead, silent = pair()
    ranks = [dead.killed(after=1), silent.silent(after=3)]
    found = account(*ranks, over=abandoned(*ranks), at=3 * DAY)
    assert (found.status, found.end_ns) == ("abandoned", ns(13.5 + DAY))
    assert (of_rank(found, 0)["down"], of_rank(found, 1)["unobserved"]) == (DAY + 2, DAY)


def test_abandoned_process_that_is_back_goes_on():
    """All of it is accounted for then, as if it had never been abandoned: the time between was a step's."""
    over = abandoned(*[one.silent(after=1) for one in pair()])
    ranks = [one.steps(3, forward=DAY) for one in pair()]
    at = ranks[0].now_ns / 1e9
    found, want = (account(*ranks, over=given, at=at) for given in (over, None))
    assert found == want and found.status == "running" and "down" not in of_rank(found)


def test_abandoned_run_is_down_for_its_limit():
    """Started again after three days: nobody knows for how long its GPUs were held, so a day counts, as before."""
    ranks = [one.killed(after=1) for one in pair()]
    found = account(*ranks, *again(3 * DAY), over=abandoned(*ranks), at=3 * DAY + 4)
    assert found.status == "running" and of_rank(found)["down"] == DAY


def test_life_of_one_rank_ends_the_abandonment():
    """One rank of two was only cut off: once it is dead too the run has failed, then."""
    ranks = [one.killed(after=1) for one in pair()]
    over = abandoned(*ranks)
    back = pair()[1].steps(3, forward=DAY).killed()
    for at in (back.now_ns / 1e9, back.now_ns / 1e9 + DAY):
        found = account(ranks[0], back, over=over, at=at)
        assert (found.status, found.end_ns, found.may_restart) == ("failed", back.now_ns, True)


def test_declared_end_replaces_the_abandonment():
    ranks = [one.killed(after=1) for one in pair()]
    run = run_of(*ranks)
    for attempt, over in zip(run.attempts.values(), (abandoned(*ranks), mark()), strict=True):
        attempt.end_mark = over
    found = compute(run, ns(10 * DAY), stale_seconds=STALE, known_only=True)
    assert (found.status, found.end_ns) == ("cancelled", ns(11.5))


def test_window_ends_with_the_run():
    ranks = [one.killed(after=1) for one in pair()]
    found = account(*ranks, over=mark(), window=(ns(8), None))
    assert (found.start_ns, found.end_ns) == (ns(8), ns(11.5)) and of_rank(found) == {"lost": 3.5}
