"""Waiting in collectives for a slower rank."""

from goodput.account.text import duration, interval, more_than_rank, on

STATE = "straggler"
ADVICE = (
    "If one rank is slow, check its node for throttling, a bad GPU or a slow disk; if ranks are slow in turn, look for "
    "uneven batches, noisy neighbours or too few cores."
)

_BECAUSE = {
    "loader": "its loader is slow: check that node's disk, CPU and network, or the shard it reads",
    "h2d": "its copies to the device are slow: check pinned memory and the PCIe link of that node",
    "productive": "its compute is slow: check that node for throttling, a degraded GPU or uneven work",
    "checkpoint": "only this rank saves checkpoints: save asynchronously or from all ranks",
    "evaluation": "only this rank evaluates: evaluate on all ranks or in a separate job",
    "rollout": "its rollouts are slow: check that node's CPU, its environments and the lengths it generates",
    "unattributed": "it spends time outside any phase: name that time with goodput.phase(...)",
}
_SLOW_CPU = "its compute is slow: check that node for throttling, other programs on its cores or uneven work"


def advise(account) -> str:
    parts = [*_slow_rank(account), *_slow_stage(account)]
    if parts:
        return " ".join(part for _, part in sorted(parts, key=lambda one: -one[0]))
    if account.straggler.stages:
        return (
            "No single rank or stage is slow: the slowest rank changes from step to step. Look for microbatches of uneven "
            "work (balance sequence lengths), noisy neighbours or too few CPU cores per rank."
        )
    return (
        "No single rank is slow: the slowest rank changes from step to step. Look for uneven batches, noisy neighbours "
        "or too few CPU cores per rank."
    )


def _slow_rank(account) -> list[tuple[float, str]]:
    """The share of the waiting that the slow rank explains, with what to do; empty without one."""
    culprit = account.straggler.culprit()
    if culprit is None:
        return []
    rank, state = culprit
    host = account.hosts().get(rank, "")
    share = dict(account.straggler.shares()).get(rank, 0.0)
    because = _BECAUSE.get(state, f"it spends longer in {state}")
    because = _SLOW_CPU if state == "productive" and account.is_on_cpu else because
    since = account.straggler.since(rank)
    when = "" if since is None else f" since step {since}"
    if account.straggler.since_start(rank):
        when = " from the start"
    what, colon, to_do = because.partition(":")
    calls = account.calls_that_slow(rank)
    if calls is not None:
        because = (
            f"its calls of {calls.operation} in {calls.group} take {duration(calls.issue_ns / 1e9)} a step to return, others' "
            f"{duration(calls.usual_ns / 1e9)}: check whether its threads get a core, and what its communication hook does"
        )
    else:
        because = f"{what}{_mostly(account.straggler.because_phase(), state)}{colon}{to_do}"
    text = f"{100 * share:.0f} % of it is waiting for rank {rank}{on(host)}{when}{_more(account, share)}: {because}."
    return [(share, text + _gain(account, rank))]


def _gain(account, rank: int) -> str:
    """What the others would gain, where the steps were replayed."""
    gain = account.replayed and account.replayed.by_rank.get(rank)
    if not gain:
        return ""
    return f" As fast as the median rank, the run would be {gain.value:.2f}x as fast{interval(gain.low, gain.high)}."


def _slow_stage(account) -> list[tuple[float, str]]:
    """As `_slow_rank`, for a stage that has more work than the others."""
    stage = account.straggler.culprit_stage()
    if stage is None:
        return []
    share = dict(account.straggler.stage_shares()).get(stage, 0.0)
    text = (
        f"{100 * share:.0f} % of it is waiting for stage {stage}, which has more work than the others"
        f"{_mostly(account.straggler.stage_because_phase())}: move layers from it to other stages."
    )
    return [(share, text)]


def _mostly(phase: str | None, state: str = "") -> str:
    """The phase, where it says more than the state."""
    return "" if phase in (None, state) else f", mostly in {phase}"


def _more(account, share: float) -> str:
    """The host, else the stage, if all of its ranks together explain more of the waiting."""
    hosts = set(account.of("host"))
    stages = set(account.of("stage")) - {None}
    host = more_than_rank(share, account.straggler.host_shares(), len(hosts))
    if host is not None:
        return f" ({100 * host[1]:.0f} % for all ranks on {host[0]})"
    stage = more_than_rank(share, account.straggler.stage_shares(), len(stages))
    return "" if stage is None else f" ({100 * stage[1]:.0f} % for all ranks of stage {stage[0]})"
