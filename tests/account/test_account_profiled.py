"""A rank that only NCCL's profiler plugin has recorded: nobody sees its steps, so its calls are its progress."""

import pytest

from goodput.account.attempts import Attempt
from goodput.account.collective_verdict import PROFILED, Call, GroupCalls, is_open
from goodput.account.hang import verdict
from goodput.account.rank_status import rank_status
from goodput.account.stall_threshold import PlannedLimits

SECOND = 10**9
HOUR = 3600 * SECOND


def hang(role: str, phase: str, since_ns: int):
    """The verdict on a rank that started four hours ago, whose last call began or ended `since_ns` ago."""
    attempt = Attempt(0, 1, HOUR, role=role, phases=("none", "communication"), totals=(0, 0))
    attempt.seen_ns, attempt.phase = 5 * HOUR, phase
    attempt.last_ns = attempt.seen_ns - since_ns
    return verdict([rank_status(attempt, None, PlannedLimits(), 5 * HOUR)], 5 * HOUR, 60 * SECOND)


@pytest.mark.parametrize(
    ("phase", "since_ns", "hangs"),
    [
        ("none", 1, False),
        ("none", 600 * SECOND, False),  # It may compute, or wait for requests.
        ("communication", 50 * SECOND, False),
        ("communication", 70 * SECOND, True),
    ],
)
def test_open_call_is_a_hang_and_no_step_is_none(phase, since_ns, hangs):
    assert (hang(PROFILED, phase, since_ns) is not None) == hangs
    assert hang("", phase, since_ns) is not None  # Of others no step in four hours is one.


def test_end_on_the_device_is_known():
    call = Call(1, "all_reduce", "float32", 4, -1, 1, 2)
    by_plugin = GroupCalls("0", "", PROFILED, 2, (), 1, (call,))
    assert not is_open(by_plugin, call) and is_open(by_plugin._replace(backend="nccl"), call)
    assert is_open(by_plugin, call._replace(exit_ns=0))
