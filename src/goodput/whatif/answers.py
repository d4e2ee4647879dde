"""What each change would be worth for a run: how much faster, how many GPU-hours, how many dollars."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import numpy as np

from goodput.account import Account
from goodput.account.text import duration
from goodput.estimates.mean import CONFIDENCE, Mean, mean_of
from goodput.whatif import changes, checkpoints, replay, savings
from goodput.whatif.changes import Change
from goodput.whatif.gains import faster_by, gains, saved_by
from goodput.whatif.steps import Recorder, Team

GAIN_MIN = 0.001  # smaller ones are not listed
NODES_MIN = 3
NODE_GAIN_MIN = 0.01
CORE_WAIT_MIN = 0.02  # the share of their time that ranks of a node wait for cores, from which it is reported
HOUR_NS = 3.6e12
READS_AHEAD = "if the loader keeps up, which reads ahead and is waited for already"
NO_WAITS = "no communication was measured, so what ranks wait for each other is unknown"


class Answer(msgspec.Struct, frozen=True):
    """One change. `gain` is by how much faster the run would be, 0.08 for 8 %; bounds are those of 95 % intervals.

    `basis` is "replayed" where the recorded steps were, else "estimated".
    """

    change: str
    kind: str
    state: str | None
    rank: int | None
    host: str | None
    gain: float
    gain_low: float
    gain_high: float
    gpu_hours: float
    gpu_hours_low: float
    gpu_hours_high: float
    dollars: float | None
    basis: str
    note: str = ""


class Unknown(msgspec.Struct, frozen=True):
    """A change whose worth is unknown, and why."""

    change: str
    reason: str


class Answers(msgspec.Struct, frozen=True):
    """The answers for one run. `answers` are those worth at least a thousandth, the most GPU-hours first; where
    `worker` is "process" and not "GPU", hours are of processes.

    `unexplained` is the part of a step that the ranks' own times and waits leave open; it is zero if all were measured.
    `gains` has by state how many times as fast the run would be without it. `core_waits` has by host the share of their
    time that its ranks waited for a core, where that is much: the replay takes their work to be as long after a change, but
    it depends on which ranks need the cores at the same time.
    """

    run: str
    ranks: int
    worker: str
    gpu_hours: float
    dollars: float | None
    confidence: float
    steps: int
    steps_replayed: int
    step_seconds: float | None
    unexplained: float | None
    answers: list[Answer]
    unknown: list[Unknown]
    gains: dict[str, float]
    core_waits: dict[str, float] = {}


def answer(account: Account, recorder: Recorder) -> Answers:
    """`recorder` has taken the run's steps."""
    teams = recorder.teams(account.is_of_workers, account.threshold_ns)
    known = [team for team in teams if changes.waits_known(team)]
    parts: list[Answer | Unknown] = [*_of_steps(account, known)]
    if not known:
        reason = NO_WAITS if teams else "too few steps with measured phases"
        parts.append(Unknown("loader, communication or a rank faster", reason))
    parts += [_interval(account, known), _restarts(account), _node(account, known)]
    price, hours = account.gpu_hour_cost(), account.wall_gpu_ns() / HOUR_NS
    answers = [one for one in parts if isinstance(one, Answer) and one.gpu_hours >= GAIN_MIN * hours > 0]
    return Answers(
        run=account.run,
        ranks=account.rank_count(),
        worker="process" if account.is_on_cpu else "GPU",
        gpu_hours=hours,
        dollars=None if price is None else hours * price,
        confidence=CONFIDENCE,
        steps=max((rank.kept_steps + rank.lost_steps for rank in account.ranks), default=0),
        steps_replayed=sum(int(team.counts.sum()) for team in known),
        step_seconds=_mean(
            known, lambda team: float(np.average(replay.recorded(team), weights=team.counts)) / 1e9
        ),
        unexplained=_mean(known, replay.unexplained),
        answers=sorted(answers, key=lambda one: -one.gpu_hours),
        unknown=[one for one in parts if isinstance(one, Unknown)],
        gains={state: gain.value for state, gain in gains(account, known).items()},
        core_waits=_core_waits(account),
    )


def _core_waits(account: Account) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for rank in account.ranks:
        if rank.observed:
            found.setdefault(rank.host, []).append(min(rank.core_wait_ratio or 0.0, 1.0))
    shares = {host: sum(ratios) / len(ratios) for host, ratios in found.items()}
    return {host: share for host, share in sorted(shares.items()) if share >= CORE_WAIT_MIN}


def _mean(teams: list[Team], figure: Callable[[Team], float]) -> float | None:
    """A figure of a team's step, over the steps of all teams."""
    steps = sum(team.steps for team in teams)
    return sum(figure(team) * team.steps for team in teams) / steps if steps else None


def _of_steps(account: Account, teams: list[Team]) -> Iterator[Answer]:
    is_ahead = any(map(changes.reads_ahead, teams))
    for change in _changes(teams):
        note = READS_AHEAD if is_ahead and change.state != "loader" else ""
        saved = saved_by(change, teams)
        yield _answer(account, change, saved.value, savings.bounds(saved), note=note)


def _changes(teams: list[Team]) -> Iterator[Change]:
    present = {state for team in teams for state in changes.GONE if team.state(state).any()}
    yield from (changes.state_gone(state) for state in changes.GONE if state in present)
    yield changes.communication_less(0.5)
    yield changes.all_as_the_median()
    yield changes.spread_evenly()
    named: dict[tuple, Change] = {}
    for team in sorted(teams, key=lambda team: -team.steps):
        for change in [*changes.slow_ranks(team), changes.slow_stage(team)]:
            if change is not None:
                named.setdefault((change.kind, change.rank, change.host), change)
    yield from named.values()


def _answer(
    account: Account,
    change: Change,
    saved_ns: float,
    bounds_ns: tuple[float, float],
    basis: str = "replayed",
    note: str = "",
    faster: tuple[float, ...] = (),
) -> Answer:
    """`saved_ns` and its bounds are GPU-time; `faster` is the gain with bounds where it does not follow from them."""
    low, high = bounds_ns
    wall, price = account.wall_gpu_ns(), account.gpu_hour_cost()
    gains = faster or (faster_by(wall, saved_ns), faster_by(wall, low), faster_by(wall, high))
    hours = [ns / HOUR_NS for ns in (saved_ns, low, high)]
    return Answer(
        change=change.text,
        kind=change.kind,
        state=change.state,
        rank=change.rank,
        host=change.host,
        gain=gains[0],
        gain_low=gains[1],
        gain_high=gains[2],
        gpu_hours=hours[0],
        gpu_hours_low=hours[1],
        gpu_hours_high=hours[2],
        dollars=None if price is None else hours[0] * price,
        basis=basis,
        note=note,
    )


def _interval(account: Account, teams: list[Team]) -> Answer | Unknown:
    """Checkpoints at the best interval for the failures seen."""
    text = "checkpoints at the best interval"
    interval = account.commit_pairs_ns / account.commit_pairs / 1e9 if account.commit_pairs else None
    if not account.failures:
        return Unknown(text, "no failure was seen")
    if interval is None or not account.commits:
        return Unknown(text, "fewer than two committed checkpoints")
    # A save holds the run up for as long as its steps would be shorter without it.
    gone = changes.state_gone("checkpoint")
    held = [_held_up(team, gone.lengths(team)) for team in teams if team.state("checkpoint").any()]
    save = sum(mean.value for mean in held) / account.commits / 1e9
    if save <= 0:
        return Unknown(text, "no time was seen in saves")
    error = sum(mean.variance for mean in held) ** 0.5 / account.commits / 1e9
    work, alive = max(interval - save, save / 100), account.alive_ns / 1e9
    best = checkpoints.optimum(save, error, work, alive, account.failures, CONFIDENCE)
    lived_ns = alive * 1e9 * account.wall_gpu_ns() / max(account.allocated_ns, 1)
    change = Change("interval", text, lambda _: None, "checkpoint")
    note = f"every {duration(best.seconds + save)} instead of {duration(interval)}"
    bounds = (best.low * lived_ns, best.high * lived_ns)
    return _answer(account, change, best.share * lived_ns, bounds, "estimated", note)


def _held_up(team: Team, without: np.ndarray | None) -> Mean:
    """For how long saves held the team up, in ns."""
    assert without is not None
    one = savings.by_kind(team, replay.lengths(team) - without, mean_of)
    return Mean(one.value * team.steps, one.variance * team.steps**2, one.freedom)


def _restarts(account: Account) -> Answer | Unknown:
    """Restarts in half the time; their number is random (Poisson), and so are the sums."""
    text = "restarts twice as fast"
    costs = [restart.down_gpu_ns + restart.startup_gpu_ns for restart in account.restarts]
    if not any(costs):
        return Unknown(text, "no restart was seen")
    saved, variance = sum(costs) / 2, 2 * sum((cost / 2) ** 2 for cost in costs)
    low, high = saved - 1.96 * variance**0.5, saved + 1.96 * variance**0.5
    seconds = sum(costs) / 1e9 / max(sum(restart.devices for restart in account.restarts), 1)
    note = f"{len(costs)} restart{'s' * (len(costs) > 1)}, {duration(seconds)} until the first step"
    change = Change("restart", text, lambda _: None, "down")
    return _answer(account, change, saved, (max(low, 0.0), high), "estimated", note)


def _node(account: Account, teams: list[Team]) -> Answer | Unknown:
    """The node without which the others would work best, each rank with the batch that it has now."""
    text = "one node left out"
    wide = [team for team in teams if len(team.host_devices) >= NODES_MIN and not team.stages]
    if not wide:
        return Unknown(text, f"it takes {NODES_MIN} nodes, and no pipeline")
    team = max(wide, key=lambda team: team.steps)
    hosts = list(team.host_devices)
    without = np.stack([changes.without_node(team, host) for host in hosts], axis=1)
    at = int(without.mean(axis=0).argmin())
    host, saved = hosts[at], savings.of_steps(team, without[:, at])
    bounds = savings.bounds(saved)
    is_slow = changes.is_larger(-without, at)
    if faster_by(account.wall_gpu_ns(), saved.value) < NODE_GAIN_MIN or not is_slow:
        return Unknown(text, "no node slows the others down")
    rest = (team.devices - team.host_devices[host]) / team.devices
    # The same work by fewer GPUs: GPU-time is less by `saved`, but the time is longer.
    wall = account.wall_gpu_ns()
    gains = tuple((1 + faster_by(wall, ns)) * rest - 1 for ns in (saved.value, *bounds))
    change = Change("node", f"node {host} left out", lambda _: None, "straggler", None, host)
    workers = "processes" if account.is_on_cpu else "GPUs"
    note = f"the same work by {team.devices - team.host_devices[host]} of {team.devices} {workers}, with the batch that each has"
    return _answer(account, change, saved.value, bounds, "replayed", note, gains)
