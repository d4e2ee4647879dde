"""A rank that only NCCL's profiler plugin has recorded: nobody sees its steps, so its calls are its progress."""

import pytest

from goodput.account.attempts import Attempt
from goodput.account.collectives.calls import PROFILED, Call, GroupCalls, is_open
from goodput.account.hang import verdict
from goodput.account.rank_status import rank_status
from goodput.account.stall_threshold import PlannedLimits

SECOND = 10**9
HOUR = 3600 * SECOND


def hang(*ranks: tuple[str, int], role: str = PROFILED):
    """The verdict on ranks that started four hours ago, by phase and how long ago their last call began or ended."""
    statuses = []
    for rank, (phase, since_ns) in enumerate(ranks):
        attempt = Attempt(rank, 1, HOUR, role=role, phases=("none", "communication"), totals=(0, 0))
        attempt.seen_ns, attempt.phase = 5 * HOUR, phase
        attempt.last_ns = attempt.seen_ns - since_ns
        statuses.append(rank_status(attempt, None, PlannedLimits(), 5 * HOUR))
    return verdict(statuses, 5 * HOUR, 60 * SECOND)


WAITS, IDLE = "communication", "none"


@pytest.mark.parametrize(
    ("ranks", "culprit"),
    [
        ([(IDLE, 1), (IDLE, 3 * HOUR)], "none"),
        ([(IDLE, 3 * HOUR), (IDLE, 3 * HOUR)], "none"),  # They may wait for requests.
        ([(WAITS, 50 * SECOND), (WAITS, 70 * SECOND)], "none"),
        ([(WAITS, 500 * SECOND), (IDLE, 500 * SECOND)], "none"),  # Rank 1 may save a checkpoint,
        ([(WAITS, 700 * SECOND), (IDLE, 700 * SECOND)], 1),  # but not for so long.
        ([(WAITS, 70 * SECOND), (WAITS, 80 * SECOND)], None),
    ],
)
def test_hang_of_ranks_without_steps(ranks, culprit):
    found = hang(*ranks)
    assert (found.culprit and found.culprit.rank if found else "none") == culprit
    assert hang(*ranks, role="") is not None  # Of others no step in four hours is one.


def test_end_on_the_device_is_known():
    call = Call(1, "all_reduce", "float32", 4, -1, 1, 2)
    by_plugin = GroupCalls("0", "", PROFILED, 2, (), 1, (call,))
    assert not is_open(by_plugin, call) and is_open(by_plugin._replace(backend="nccl"), call)
    assert is_open(by_plugin, call._replace(exit_ns=0))
