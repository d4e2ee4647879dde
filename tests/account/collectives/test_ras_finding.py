"""Which rank of a run NCCL's RAS means, and what becomes of a hang's verdict with it."""

import pytest

from goodput.account.collectives.ras_finding import ras_finding
from goodput.account.hang import RankStatus, verdict, with_ras
from goodput.wire.ras import RasAnswer, RasCommunicator, RasRank

SECOND = 10**9
NOW = 5000 * SECOND
PIDS = {rank: 100 + rank for rank in range(4)}


def communicator(kind="missing", *ranks: RasRank, size: int = 4, count: int = 0):
    return RasCommunicator("0xae", size, kind, count or len(ranks), ranks)


def named(rank: int, pid: int | None = None, problem: str = "is dead") -> RasRank:
    return RasRank(rank, "10.0.0.9", 100 + rank if pid is None else pid, problem)


def found(*communicators, pids=PIDS, world_size: int = 4):
    return ras_finding([(7 * SECOND, RasAnswer(9, communicators))], pids, world_size)


def test_nothing_wrong_is_no_finding():
    assert ras_finding([], PIDS, 4) is None and found() is None


def test_newest_answer_counts():
    """Of two agents that queried it."""
    answers = [(5, RasAnswer(1, (communicator("missing", named(1)),))), (9, RasAnswer(1))]
    assert ras_finding(answers, PIDS, 4) is None
    assert ras_finding(answers[:1], PIDS, 4).named() == 1


def test_rank_needs_its_pid():
    assert found(communicator("missing", named(2))).named() == 2
    assert found(communicator("missing", named(2, pid=999))).named() is None, "a process of another job"
    small = communicator("missing", named(0, pid=103), size=2)
    assert found(small).named() == 3, "the first rank of a part of the job, by its pid"


def test_same_pids_in_containers_need_the_number_in_all_ranks():
    """Each node's processes begin with the same pid."""
    pids = {0: 7, 1: 8, 2: 7, 3: 8}
    assert found(communicator("missing", named(2, pid=7)), pids=pids).named() == 2
    assert found(communicator("missing", named(1, pid=7), size=2), pids=pids).named() is None


def test_missing_comes_before_failed_and_behind():
    behind = communicator("behind", named(1, problem="has made 3 calls of all_reduce, others 4"))
    worst = found(behind, communicator("failed", named(2)), communicator("missing", named(3), size=2))
    assert (worst.kind, worst.named(), worst.suspicious, worst.communicators) == ("missing", 3, 3, 9)


def test_several_behind_name_nobody():
    late = [named(rank, problem="has made 3 calls of all_reduce, others 4") for rank in (0, 1, 2)]
    one = found(communicator("behind", *late, count=5))
    assert one.named() is None
    assert one.reason() == (
        "NCCL's RAS, of a communicator of 4 ranks: "
        "rank 0 on 10.0.0.9 (pid 100) has made 3 calls of all_reduce, others 4; "
        "rank 1 on 10.0.0.9 (pid 101) has made 3 calls of all_reduce, others 4; "
        "rank 2 on 10.0.0.9 (pid 102) has made 3 calls of all_reduce, others 4; and 2 more"
    )


def waiting(rank: int, phase: str = "communication") -> RankStatus:
    """A rank whose last step ended 100 s ago."""
    began = NOW - 100 * SECOND
    return RankStatus(rank, f"n{rank}", 1, phase, phase, began, NOW, NOW, began, 8)


def judged(*ranks: RankStatus):
    hang = verdict(ranks, NOW, 60 * SECOND)
    assert hang is not None
    return with_ras(hang, found(communicator("missing", named(2))), ranks, NOW)


def test_rank_of_ras_is_named_where_all_wait():
    hang = judged(*map(waiting, range(4)))
    assert (hang.culprit.rank, hang.culprit.host, hang.victims) == (2, "n2", 3)
    assert hang.reason.startswith(
        "NCCL's RAS, of a communicator of 4 ranks: rank 2 on 10.0.0.9 (pid 102) is dead. undecided"
    )
    document = hang.document()
    assert document["culprit"] == 2 and document["ras"] == {
        "time": 7.0, "hash": "0xae", "size": 4, "kind": "missing", "count": 1, "suspicious": 1, "communicators": 9,
        "ranks": [{"rank": 2, "number": 2, "host": "10.0.0.9", "pid": 102, "problem": "is dead"}],
    }  # fmt: skip


def test_rank_that_is_elsewhere_stays_the_culprit():
    hang = judged(waiting(0, "forward"), *map(waiting, range(1, 4)))
    assert hang.culprit.rank == 0 and hang.ras.named() == 2
    assert hang.reason.endswith("rank 2 on 10.0.0.9 (pid 102) is dead")


@pytest.mark.parametrize("rank", [9, None])
def test_unknown_rank_changes_the_reason_alone(rank):
    ranks = list(map(waiting, range(4)))
    hang = verdict(ranks, NOW, 60 * SECOND)
    one = found(communicator("missing", named(rank or 0, pid=555)))
    changed = with_ras(hang, one, ranks, NOW)
    assert changed.culprit is None and f"its rank {rank or 0} on 10.0.0.9 (pid 555)" in changed.reason
