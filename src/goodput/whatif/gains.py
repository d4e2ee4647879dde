"""How many times as fast a run would be without a state, by replay of its steps: the gains of its causes."""

from __future__ import annotations

import numpy as np

from goodput.account.account import Account, ReplayedGains
from goodput.account.document_types import Gain
from goodput.account.states import INDEX
from goodput.estimates.mean import Mean
from goodput.whatif import changes, replay, savings
from goodput.whatif.changes import Change
from goodput.whatif.steps import Recorder, Team

# States that some ranks may be in while others wait. The others hold all ranks up at once, so their share is the measure.
REPLAYED = ("loader", "h2d", "checkpoint", "evaluation", "rollout", "unattributed")


def replayed_gains(account: Account, recorder: Recorder) -> ReplayedGains | None:
    """From the steps that `recorder` has taken; None where they are not enough."""
    teams = recorder.teams(account.is_of_workers, account.threshold_ns)
    known = [team for team in teams if changes.waits_known(team)]
    if not known:
        return None
    return ReplayedGains(gains(account, known, recorder.is_sample), _rank_gains(account, known))


def _rank_gains(account: Account, teams: list[Team]) -> dict[int, Gain]:
    """The gains of the ranks that others wait for most, in the team with most steps."""
    slow = changes.slow_ranks(max(teams, key=lambda team: team.steps))
    return {one.rank: _gain(account, saved_by(one, teams)) for one in slow if one.rank is not None}


def gains(account: Account, teams: list[Team], is_sample: bool = False) -> dict[str, Gain]:
    """What removing a state from the steps brings, and by share its time outside them.

    No rank waits for a slower one where all are as fast as the median, or where the work is spread evenly over them:
    counted is what brings more. Of a sample of the ranks, which has all slow ones, the mean is not known.
    """
    if not teams:
        return {}
    spent = account.gpu_ns()
    without = {state: [changes.state_gone(state)] for state in REPLAYED}
    without["communication"] = [changes.communication_less(1.0)]
    without["straggler"] = [changes.all_as_the_median(), *([] if is_sample else [changes.spread_evenly()])]
    found = {}
    for state, ways in without.items():
        all_ns = spent[INDEX[state]]
        inside = sum(_spent_ns(team, state) for team in teams) if state != "straggler" else all_ns
        if all_ns:
            saved = max((saved_by(change, teams) for change in ways), key=lambda one: one.value)
            found[state] = _gain(account, saved, max(all_ns - inside, 0.0))
    return found


def _gain(account: Account, saved: Mean, more_ns: float = 0.0) -> Gain:
    """The gain of saved GPU time, an estimate, and of `more_ns` that is saved for certain."""
    wall = account.wall_gpu_ns()
    return Gain(
        *(1 + max(faster_by(wall, ns + more_ns), 0.0) for ns in (saved.value, *savings.bounds(saved)))
    )


def faster_by(whole_ns: float, saved_ns: float) -> float:
    """By how much faster, 0.08 for 8 %; no more is saved than there is."""
    return whole_ns / max(whole_ns - saved_ns, whole_ns * 1e-6) - 1 if whole_ns else 0.0


def saved_by(change: Change, teams: list[Team]) -> Mean:
    """GPU-time of all steps of the teams."""
    parts = [(team, change.lengths(team)) for team in teams]
    return savings.total(savings.of_steps(team, lengths) for team, lengths in parts if lengths is not None)


def _spent_ns(team: Team, state: str) -> float:
    """GPU-time in a state, in all steps of the team."""
    times = replay.exchange(team) if state == "communication" else team.state(state).mean(axis=1)
    return _all_steps_ns(team, times)


def _all_steps_ns(team: Team, times: np.ndarray) -> float:
    return float(np.average(times, weights=team.counts)) * team.steps * team.devices
