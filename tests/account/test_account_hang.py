"""The hang verdict: hand-worked cases, and properties under reordering and time."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.account.account_history import ns

from goodput.account.hang import RankStatus, verdict
from goodput.account.stall_threshold import PLANNED_LEAST_NS
from goodput.defaults import PEERS

NOW = ns(1000)
MINUTE = ns(60)


def rank(
    number: int, state: str, *, stuck: float = 100, step: int | None = 9, age: float = 2, **given
) -> RankStatus:
    """A rank that entered `state` `stuck` seconds before its last report, right after step `step`.

    Its host's clock is a day and `number` hours ahead of ours; the report arrived `age` seconds ago.
    """
    seen_ns = NOW + ns(86_400 + 3600 * number)
    fields = {
        "rank": number, "host": f"n{number}", "attempt": 1, "phase": state, "state": state,
        "phase_since_ns": seen_ns - ns(stuck), "seen_ns": seen_ns, "received_ns": NOW - ns(age),
        "last_progress_ns": seen_ns - ns(stuck), "step": step,
    }  # fmt: skip
    return RankStatus(**{**fields, **given})


def waiting(*numbers: int, **given) -> list[RankStatus]:
    return [rank(number, "communication", **given) for number in numbers]


def later(one: RankStatus, passed_ns: int) -> RankStatus:
    """The same rank, reported so much later, with nothing new."""
    return one._replace(seen_ns=one.seen_ns + passed_ns, received_ns=one.received_ns + passed_ns)


def judged(*ranks: RankStatus, **given):
    return verdict(ranks, NOW, MINUTE, **given)


# ---- Suspects and culprit


def test_ranks_that_tie_are_not_named():
    """All in one phase after one step: the one longest in it is no more suspect than the others."""
    found = judged(*(rank(n, "evaluation", stuck=2000 + 3 * n) for n in range(4)))
    assert (found.culprit, found.victims, len(found.suspects)) == (None, 0, 4)
    assert found.reason == "undecided: 4 ranks are in evaluation after step 9, so none of them stands out"
    found = judged(*waiting(0, 3), rank(1, "loader", stuck=103), rank(2, "loader", stuck=103.9), unseen=1)
    assert (found.culprit, found.victims) == (None, 2)
    assert found.reason == (
        "undecided: 2 ranks are in loader after step 9, so none of them stands out; "
        "2 ranks wait in communication; 1 rank never reported"
    )
    assert judged(*waiting(0), rank(1, "loader", stuck=103), rank(2, "loader", stuck=110)).culprit.rank == 2
    behind = [rank(n, "evaluation", stuck=2000, step=9 - (n == 1)) for n in range(4)]
    assert judged(*behind).culprit.rank == 1
    assert judged(rank(0, "evaluation", stuck=2000)).culprit.rank == 0, "the only rank ties with nobody"


def test_rank_in_loader_is_the_culprit():
    found = judged(*waiting(0, 2, 3), rank(1, "loader", stuck=103))
    assert found.document() == {
        "since": 898.0,  # the last to move were the victims: 100 s before a report that arrived 2 s ago
        "seconds": 102.0,
        "culprit": 1,
        "host": "n1",
        "phase": "loader",
        "phase_seconds": 105.0,
        "attempt": 1,
        "step": 9,
        "reason": "rank 1 on n1 is in loader; 3 ranks wait in communication",
        "suspects": [
            {"rank": 1, "host": "n1", "phase": "loader", "seconds": 105.0, "step": 9, "kind": "elsewhere"}
        ],
        "host_ranks": 0,
        "victims": 3,
        "collective": None,
        "ras": None,
    }


def test_user_phase_counts_as_its_state():
    inside = [rank(n, "communication", phase="ring") for n in (0, 1)]
    found = judged(*inside, rank(2, "unattributed", phase="tokenize"))
    assert (found.culprit.rank, found.culprit.phase, found.victims) == (2, "tokenize", 2)


def test_culprit_has_fewest_steps_then_stopped_first():
    found = judged(*waiting(0), rank(1, "loader", stuck=130), rank(2, "none", stuck=90, step=8))
    assert [one.rank for one in found.suspects] == [2, 1]
    assert found.reason.startswith("rank 2 on n2 is in no phase; 1 rank waits")
    found = judged(*waiting(0), rank(1, "loader", stuck=130), rank(2, "none", stuck=140))
    assert [one.rank for one in found.suspects] == [2, 1]
    found = judged(*waiting(0), rank(1, "loader"), rank(2, "none", step=None))
    assert found is None, "what did not complete a first step yet may still be starting"


def test_without_waiting_ranks_the_first_stopped_is_culprit():
    """The case of collectives inside backward: no rank is in a communication phase."""
    found = judged(*(rank(n, "backward", stuck=100) for n in (0, 1, 3)), rank(2, "loader", stuck=104))
    assert (found.culprit.rank, found.victims) == (2, 0)
    assert found.reason == "rank 2 on n2 is in loader; no rank waits in communication, it stopped first"


def test_dead_rank_is_the_culprit():
    died = rank(3, "backward", stuck=1, age=101, alive=False)
    found = judged(*waiting(0, 1), rank(2, "loader", stuck=150, step=2), died)
    assert (found.culprit.rank, found.culprit.kind, found.victims) == (3, "dead", 2)
    assert found.reason == "rank 3 on n3 is dead (killed), last in backward; 2 ranks wait in communication"
    failed = judged(*waiting(0), died._replace(ended="failed", alive=True))
    assert "dead (failed)" in failed.reason
    assert judged(died, died._replace(rank=4)) is None, "without live ranks there is no hang"


def test_rank_that_died_earlier_is_no_culprit():
    died = rank(3, "backward", stuck=1, age=500, alive=False)
    found = judged(*waiting(0, 1), rank(2, "loader"), died)
    assert found.culprit.rank == 2
    found = judged(*waiting(0, 1), died)
    assert (found.culprit, found.suspects[0].kind) == (None, "dead before")
    assert found.reason.endswith("; rank 3 on n3 was dead before the others stopped")


def test_silent_rank_is_the_culprit():
    found = judged(*waiting(0, 1), rank(2, "communication", stuck=1, age=104))
    assert (found.culprit.rank, found.culprit.kind, found.culprit.seconds) == (2, "silent", 105.0)
    assert found.victims == 2 and "not reported any more, last seen in communication" in found.reason
    found = judged(*waiting(0, 1), rank(2, "communication", stuck=1, age=400))
    assert (found.culprit, found.suspects[0].kind) == (None, "silent before")
    assert judged(rank(0, "communication", age=40), rank(1, "loader", age=40)) is None, "silent ranks only"


@pytest.mark.parametrize(
    ("gone", "text"),
    [
        ({"alive": False}, "host h1 is dead (killed), last in backward"),
        ({"age": 105, "stuck": 0.5}, "host h1 is not reported any more, last seen in backward"),
    ],
)
def test_host_whose_ranks_are_all_gone_is_named_once(gone, text):
    there = [rank(n, "backward", host="h1", **gone) for n in (4, 5, 6, 7)]
    found = judged(*waiting(0, 1, 2, 3), *there)
    assert found.reason == f"{text}: all 4 of its ranks; 4 ranks wait in communication"
    assert (found.document()["host"], found.document()["host_ranks"]) == ("h1", 4)
    # One of its ranks waits with the others, so it is no matter of the host.
    found = judged(*waiting(0, 1, 2, 3), *there[:3], rank(7, "communication", host="h1"))
    assert found.reason.startswith("rank 4 on h1") and found.document()["host_ranks"] == 0


def test_ranks_of_the_only_host_are_named_one_by_one():
    there = [rank(n, "backward", host="h1", alive=False) for n in (1, 2)]
    assert judged(rank(0, "communication", host="h1"), *there).document()["host_ranks"] == 0


def test_loader_is_blamed_before_a_silent_waiter():
    found = judged(*waiting(0), rank(1, "loader", stuck=103), rank(2, "communication", stuck=3, age=40))
    assert [one.rank for one in found.suspects] == [1, 2]


@pytest.mark.parametrize("stuck, suspect", [(5, True), (7, False)])
def test_node_that_is_cut_off_in_a_hang_is_no_suspect(stuck, suspect):
    """Its ranks had waited longer than steps take, which is up to a tenth of the threshold, when they were last seen."""
    cut_off = waiting(2, 3, stuck=stuck, age=100 - stuck)
    found = judged(*waiting(0, 1), *cut_off)
    assert (found.culprit is not None, bool(found.suspects)) == (suspect, suspect)
    assert found.victims == (2 if suspect else 4)
    in_loader = [one._replace(state="loader", phase="loader") for one in cut_off]
    assert judged(*waiting(0, 1), *in_loader).culprit.kind == "silent", "it did not wait for the others"
    behind = judged(*waiting(0, 1, 2), *waiting(3, step=8, stuck=7, age=93))
    assert (behind.culprit.rank, behind.culprit.kind) == (3, "behind")


def test_finished_rank_is_culprit_if_others_wait():
    done = rank(1, "none", stuck=0, age=101, ended="finished")
    found = judged(*waiting(0, 2), done)
    assert (found.culprit.rank, found.culprit.kind) == (1, "finished")
    assert found.reason == "rank 1 on n1 has finished after step 9; 2 ranks wait in communication"
    assert judged(*waiting(0), rank(2, "loader"), done).culprit.rank == 2
    assert judged(*waiting(0, 2), done._replace(received_ns=NOW - ns(400))).culprit is None


def test_only_rank_behind_is_the_culprit():
    found = judged(*waiting(0, 1, 3), rank(2, "communication", step=8))
    assert (found.culprit.rank, found.culprit.kind, found.victims) == (2, "behind", 3)
    assert "has completed step 8 and the others more" in found.reason
    found = judged(*waiting(0, 1), *waiting(2, 3, step=8))
    assert (found.culprit, found.suspects, found.victims) == (None, (), 4)


def test_all_waiting_at_one_step_is_undecided():
    found = judged(*waiting(0, 1, 2), unseen=1)
    document = found.document()
    assert [document[name] for name in ("culprit", "host", "phase", "attempt", "step")] == [None] * 5
    assert document["reason"].startswith("undecided: 3 ranks wait in communication and no rank is elsewhere")
    assert document["reason"].endswith("; 1 rank never reported")
    assert judged(*waiting(0)).reason.startswith("undecided: 1 rank waits")


# ---- No hang


def test_progress_of_one_rank_is_no_hang():
    exact = rank(0, "loader", stuck=60)
    assert judged(exact) is None
    assert judged(exact._replace(last_progress_ns=exact.last_progress_ns - 1)) is not None
    assert judged(*waiting(0, 1, 2), rank(3, "loader", stuck=59)) is None


def test_time_after_the_last_report_is_not_counted():
    """Its last report was before the threshold; the 20 s since then do not count as standing still."""
    assert judged(*waiting(0), rank(1, "loader", stuck=50, age=20)) is None


def test_phases_without_a_step_are_no_progress():
    """A retry loop in user code passes phase boundaries and completes no step."""
    busy = rank(1, "loader")
    busy = busy._replace(phase_since_ns=busy.seen_ns - ns(0.01))
    assert judged(*waiting(0), busy).culprit.rank == 1


@pytest.mark.parametrize("state", ["checkpoint", "evaluation", "restore", "compile"])
def test_planned_phase_has_a_larger_threshold(state):
    assert judged(*waiting(0, 1, stuck=1700), rank(2, state, stuck=1700)) is None
    found = judged(*waiting(0, 1, stuck=1801), rank(2, state, stuck=1801))
    assert (found.culprit.rank, found.culprit.phase) == (2, state)
    silent = rank(2, state, stuck=50, age=50)
    assert judged(*waiting(0, 1), silent) is None, "nor is one that is no longer reported"
    assert judged(*waiting(0, 1, stuck=1801), silent._replace(received_ns=NOW - ns(1751))) is not None


def test_silent_rank_is_excused_while_its_planned_phase_lasts():
    """A node dies in an evaluation of all ranks; the others leave it after 10 s and wait."""
    done = [one._replace(planned={"evaluation": ns(10)}) for one in waiting(0, 1)]
    silent = rank(2, "evaluation", stuck=8, age=105)
    found = judged(*done, silent)
    assert (found.culprit.rank, found.culprit.kind) == (2, "silent")
    assert found.reason.startswith("rank 2 on n2 is not reported any more, last seen in evaluation")
    assert judged(*done, rank(2, "evaluation", stuck=11, age=105)) is None, "it evaluates more than they do"
    assert judged(*done, rank(2, "checkpoint", stuck=8, age=105)) is None, "they did not save with it"
    assert judged(*waiting(0, 1), silent) is None, "it evaluates alone"


def test_planned_phase_of_a_silent_rank_is_over_when_others_step():
    """Its agent is cut off in an evaluation; the run goes on, and hangs."""
    cut_off = rank(2, "evaluation", stuck=8, step=8, age=200)
    assert judged(*waiting(0, 1), cut_off).reason.endswith(
        "rank 2 on n2 was silent before the others stopped"
    )
    assert judged(*waiting(0, 1, attempt=2, step=None), cut_off) is not None
    assert judged(*waiting(0, 1, step=8), cut_off) is None


def test_limit_of_a_planned_phase_is_the_ranks_own():
    """It has evaluated for 10 minutes before: 100 are excused. A checkpoint since the last step has its own limit."""
    inside = rank(1, "evaluation", stuck=5900, limit_ns=ns(6000))
    assert judged(*waiting(0, stuck=5900), inside) is None
    progress_ns = inside.last_progress_ns - ns(200)
    longer = inside._replace(planned={"evaluation": ns(101)}, last_progress_ns=progress_ns)
    assert judged(*waiting(0, stuck=5900), longer).culprit.rank == 1
    saved = rank(1, "evaluation", stuck=1000, planned={"checkpoint": ns(1700)})
    saved = saved._replace(last_progress_ns=saved.last_progress_ns - ns(1700))
    assert judged(*waiting(0, stuck=2700), saved) is None


def test_planned_phase_restarts_the_wait():
    """Ten minutes of evaluation with a loader of its own; then the rank stays in that loader."""
    seen_ns = rank(1, "loader").seen_ns
    inside = rank(1, "loader", stuck=600, planned={"evaluation": ns(300)})
    assert judged(*waiting(0, stuck=600), inside._replace(phase_since_ns=seen_ns - ns(60))) is None
    found = judged(*waiting(0, stuck=600), inside._replace(phase_since_ns=seen_ns - ns(61)))
    assert (found.culprit.rank, found.seconds, found.culprit.seconds) == (1, 602.0, 63.0)


def test_before_first_step_only_communication_hangs():
    begun = {"step": None, "stuck": 600}
    assert judged(rank(0, "communication", **begun), rank(1, "forward", **begun)) is None
    assert judged(rank(0, "communication", **begun), rank(1, "none", **begun)) is None
    assert judged(*waiting(0, 1, **begun)).reason.startswith("undecided")
    long = {"step": None, "stuck": 1801}
    assert judged(rank(0, "communication", **long), rank(1, "forward", **long)).culprit.rank == 1


def test_no_ranks_are_no_hang():
    assert judged() is None


def test_suspects_in_the_document_are_bounded():
    found = judged(*(rank(n, "loader", stuck=100 + n, step=9 - n // 39) for n in range(40)))
    assert [one["rank"] for one in found.document()["suspects"]] == list(range(39, 23, -1))
    assert found.culprit.rank == 39


# ---- Properties

seconds = st.integers(0, 4000)
seen = st.builds(
    lambda number, state, idle, inside, age, step, planned, how: rank(
        number, state, stuck=idle, step=step, age=age, planned={"checkpoint": ns(min(planned, idle))}, **how
    )._replace(phase_since_ns=NOW + ns(86_400 + 3600 * number) - ns(min(inside, idle))),
    number=st.integers(0, 7),
    state=st.sampled_from(
        ("communication", "communication", "loader", "unattributed", "checkpoint", "compile")
    ),
    idle=seconds,
    inside=seconds,
    age=st.sampled_from((0, 1, 5, 29, 31, 200, 3000)),
    step=st.sampled_from((None, 8, 9, 9, 9)),
    planned=st.sampled_from((0, 0, 0, 100)),
    how=st.sampled_from(({}, {}, {}, {"alive": False}, {"ended": "failed"}, {"ended": "finished"})),
)
runs = st.lists(seen, max_size=8, unique_by=lambda one: one.rank)


@given(runs, st.randoms(use_true_random=False))
@settings(max_examples=300, deadline=None)
def test_order_of_ranks_does_not_matter(ranks, chance: random.Random):
    mixed = list(ranks)
    chance.shuffle(mixed)
    assert verdict(mixed, NOW, MINUTE) == verdict(ranks, NOW, MINUTE)


@given(runs, st.integers(0, ns(7200)))
@settings(max_examples=300, deadline=None)
def test_hang_lasts_until_a_rank_moves(ranks, passed_ns):
    """While the reporting ranks report nothing new, the hang lasts and only grows older."""
    before = verdict(ranks, NOW, MINUTE)
    if before is None:
        return
    again = [later(one, passed_ns) if NOW - one.received_ns <= ns(30) and one.alive and not one.ended else one
             for one in ranks]  # fmt: skip
    after = verdict(again, NOW + passed_ns, MINUTE)
    assert after is not None
    assert after.since_ns == before.since_ns and after.victims == before.victims
    assert after.seconds == pytest.approx(before.seconds + passed_ns / 1e9)
    assert {one.rank: one.kind for one in after.suspects} == {one.rank: one.kind for one in before.suspects}
    assert (after.culprit and after.culprit.rank) == (before.culprit and before.culprit.rank)


@given(runs)
@settings(max_examples=300, deadline=None)
def test_verdict_is_consistent(ranks):
    found = verdict(ranks, NOW, MINUTE)
    loose = verdict(ranks, NOW, PLANNED_LEAST_NS)
    assert found is not None or loose is None, "a larger threshold finds no more"
    if found is None:
        return
    live = [one for one in ranks if one.alive and not one.ended]
    assert found.seconds > 60 and 0 <= found.victims <= len(live)
    names = [one.rank for one in found.suspects]
    assert len(set(names)) == len(names) and set(names) <= {one.rank for one in ranks}
    assert found.culprit is None or found.culprit == found.suspects[0]
    assert all(one.seconds >= 0 for one in found.suspects)


@given(runs, st.lists(st.integers(-ns(10**6), ns(10**6)), min_size=8, max_size=8))
@settings(max_examples=200, deadline=None)
def test_clocks_of_hosts_do_not_matter(ranks, ahead):
    """Each host's clock may be off by days: only differences of one clock are taken."""

    def moved(one: RankStatus) -> RankStatus:
        off = ahead[one.rank]
        return one._replace(
            phase_since_ns=one.phase_since_ns + off,
            seen_ns=one.seen_ns + off,
            last_progress_ns=one.last_progress_ns + off,
        )

    assert verdict([moved(one) for one in ranks], NOW, MINUTE) == verdict(ranks, NOW, MINUTE)


def test_waiting_for_peers_names_who_never_reported():
    """Before its first step a rank is excused for long, but not where it waits for others to start."""
    second = 10**9

    def rank(number: int, phase: str = PEERS, seconds: int = 100) -> RankStatus:
        return RankStatus(*(number, "n0", 1, phase, "startup", 0, seconds * second, 1000 * second, 0, None))

    threshold = 60 * second
    found = verdict([rank(0), rank(2)], 1000 * second, threshold, unseen=2)
    assert found is not None and found.culprit is None and found.victims == 2
    assert found.reason == (
        "2 ranks wait in init_process_group for the other ranks to start; ranks 1, 3 of 4 have never reported"
    )
    whole = verdict([rank(0), rank(1)], 1000 * second, threshold)
    assert whole is not None and "all ranks have reported: look at the address" in whole.reason
    assert verdict([rank(0, seconds=50)], 1000 * second, threshold, unseen=1) is None
    assert verdict([rank(0), rank(1, phase="none")], 1000 * second, threshold) is None
