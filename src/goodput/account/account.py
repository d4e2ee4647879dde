"""The account of a run: every rank's time from the run's start to its end, each nanosecond in one state.

In: a Run (timeline.py) and `now`. Out: an Account whose states sum, per rank, to the wall time exactly.
Ratios are computed from sums. Cost: about 10 us per step and rank; what depends on rows alone is kept between
calls in `Memory`. It knows no format, no price of advice and no clock.

    account = compute(run, now_ns=time.time_ns()); account.ratio("goodput")
"""

from __future__ import annotations

from dataclasses import dataclass, field

from goodput.account.cut import Cut, cut, share, threshold_ns, walk
from goodput.account.resume import kept_until, resume_points
from goodput.account.states import INDEX, vector
from goodput.account.straggler import Straggler, split
from goodput.account.timeline import Attempt, Run

_PRODUCTIVE, _LOST, _DOWN = INDEX["productive"], INDEX["lost"], INDEX["down"]
_UNOBSERVED, _COMPILE, _STALL = INDEX["unobserved"], INDEX["compile"], INDEX["stall"]


FACTORS = ("availability", "step_efficiency", "goodput", "compute_efficiency", "mfu")


@dataclass
class RankAccount:
    """One expected rank. `states` is in ns of wall time, not yet weighed by `devices`."""

    rank: int
    host: str = ""
    devices: int = 1
    states: list[int] = field(default_factory=vector)
    kept_steps: int = 0
    lost_steps: int = 0
    kept_ns: int = 0
    flops: float | None = None
    peak: float | None = None
    gpu_hour_cost: float | None = None
    observed: bool = False


@dataclass
class Restart:
    """A start of the run after the first, with what it cost. Times in unix ns, sums in GPU-ns."""

    attempt: int
    time_ns: int
    resume_step: int | None
    devices: int = 0
    down_gpu_ns: int = 0
    lost_steps: int = 0
    lost_gpu_ns: int = 0


@dataclass
class Account:
    """The whole run. `status` is running, down, unobserved or finished."""

    run: str
    start_ns: int
    end_ns: int
    status: str
    world_size: int
    ranks: list[RankAccount]
    restarts: list[Restart]
    straggler: Straggler
    threshold_ns: int
    last_progress_ns: int
    clamped: int
    samples: int
    device: str = ""

    def gpu_ns(self) -> list[int]:
        """GPU-ns per state: the ranks' sums, weighed by their devices."""
        total = vector()
        for rank in self.ranks:
            for i, ns in enumerate(rank.states):
                total[i] += ns * rank.devices
        return total

    def wall_gpu_ns(self) -> int:
        return (self.end_ns - self.start_ns) * sum(rank.devices for rank in self.ranks)

    def ratio(self, factor: str) -> float | None:
        """A factor of the chain (FACTORS), None when unknown."""
        wall = self.wall_gpu_ns()
        productive = self.gpu_ns()[_PRODUCTIVE]
        kept = sum(rank.kept_ns * rank.devices for rank in self.ranks)
        if factor == "availability":
            return kept / wall if wall else None
        if factor == "step_efficiency":
            return productive / kept if kept else None
        if factor == "goodput":
            return productive / wall if wall else None
        flops, peaks = [r.flops for r in self.ranks], [r.peak for r in self.ranks]
        if None in flops or None in peaks:
            return None
        if factor == "mfu":
            most = sum(peaks) * (self.end_ns - self.start_ns)
        else:
            most = sum(rank.peak * rank.states[_PRODUCTIVE] for rank in self.ranks)
        return sum(flops) * 1e9 / most if most else None

    def gpu_hour_cost(self) -> float | None:
        prices = [rank.gpu_hour_cost for rank in self.ranks if rank.gpu_hour_cost is not None]
        return max(prices) if prices else None


class Memory:
    """What was derived from rows alone, kept until the rows of that attempt change."""

    def __init__(self):
        self._walks: dict[int, tuple[int, object]] = {}

    def walk(self, attempt: Attempt):
        version, walked = self._walks.get(id(attempt), (-1, None))
        if version != attempt.version or not attempt.rows:
            walked = walk(attempt)
            self._walks[id(attempt)] = (attempt.version, walked)
        return walked


def compute(
    run: Run,
    now_ns: int,
    *,
    memory: Memory | None = None,
    stall_seconds: float = 60.0,
    stale_seconds: float | None = None,
    known_only: bool = False,
) -> Account:
    """The account of `run` at `now_ns` (unix ns).

    `stall_seconds` is the least length of a stall. With `stale_seconds`, an attempt not looked at for so long
    is `unobserved` from its last look on; without, what was last seen alive is taken as alive. With `known_only`
    the account of a run that goes on ends at the last moment up to which all its ranks were looked at, so that
    what they did since is not guessed; else each rank is taken to be still in the phase it was last seen in.
    """
    memory = memory or Memory()
    by_rank = run.by_rank()
    start, end, status = _window(run, by_rank, now_ns, stale_seconds)
    walks = {key: memory.walk(attempt) for key, attempt in run.attempts.items()}
    lengths = [s.length_ns for w in walks.values() for s in w.steps if s.count == 1]
    threshold = threshold_ns(lengths, stall_seconds)
    horizon = None
    if known_only and status == "running" and run.end_ns is None:
        end = horizon = _known_until(by_rank, start, end, stale_seconds)
        by_rank = {rank: [a for a in own if a.start_ns < horizon] for rank, own in by_rank.items()}
    cuts = {}
    for attempts in by_rank.values():
        for attempt, later in zip(attempts, [*attempts[1:], None], strict=True):
            until, died = _attempt_end(attempt, later, end, stale_seconds)
            key = (attempt.rank, attempt.attempt)
            cuts[key] = cut(attempt, walks[key], until, died, threshold, horizon)
    first_steps = {k: w.steps[0].step - w.steps[0].count + 1 if w.steps else None for k, w in walks.items()}
    points = resume_points(run, first_steps)
    limits = kept_until(run, points, status == "down")
    straggler = _split_stragglers(run, cuts, limits)
    end = max(end, max((c.end_ns for c in cuts.values()), default=end))
    restarts = {n: Restart(n, 0, points[n]) for n in sorted(points) if n > min(points)}
    typical = _typical(run)
    ranks = [
        _rank_account(rank, by_rank.get(rank, []), cuts, limits, restarts, (start, end), typical)
        for rank in run.expected_ranks()
    ]
    for number, restart in restarts.items():
        restart.time_ns = min(a.start_ns for a in run.attempts.values() if a.attempt == number)
    return Account(
        run=run.name,
        start_ns=start,
        end_ns=end,
        status=status,
        world_size=len(ranks),
        ranks=ranks,
        restarts=list(restarts.values()),
        straggler=straggler,
        threshold_ns=threshold,
        last_progress_ns=max((w.last_end_ns for w in walks.values() if w.steps), default=start),
        clamped=sum(c.clamped for c in cuts.values()),
        samples=sum(c.samples for c in cuts.values()),
        device=next((a.device for own in by_rank.values() for a in own if a.device), ""),
    )


def _window(run: Run, by_rank, now_ns: int, stale_seconds: float | None) -> tuple[int, int, str]:
    """The run's start, end and status. A rank's earlier attempts are over, whether their end was seen or not."""
    attempts = list(run.attempts.values())
    start = run.start_ns if run.start_ns is not None else min((a.start_ns for a in attempts), default=now_ns)
    newest = max((a.attempt for a in attempts), default=0)
    last = [a for a in attempts if a.attempt == newest]
    open_ = [own[-1] for own in by_rank.values() if own[-1].known_end_ns() is None]
    stale = all(_is_stale(a, now_ns, stale_seconds) for a in open_)
    if last and stale and all(a.ended == "finished" for a in last):
        ends = [a.known_end_ns() or 0 for a in attempts]
        return start, max(start, max(ends) if run.end_ns is None else run.end_ns), "finished"
    end = max(start, now_ns if run.end_ns is None else run.end_ns)
    if not open_:
        return start, end, "down"
    return start, end, "unobserved" if stale else "running"


def _known_until(by_rank, start_ns: int, now_ns: int, stale_seconds: float | None) -> int:
    """The last moment at which every rank that is still heard of was looked at."""
    open_ = [own[-1] for own in by_rank.values() if own[-1].known_end_ns() is None]
    fresh = [a.beat_ns() for a in open_ if not _is_stale(a, now_ns, stale_seconds)]
    return max(start_ns, min(now_ns, *fresh))


def _is_stale(attempt: Attempt, now_ns: int, stale_seconds: float | None) -> bool:
    return stale_seconds is not None and now_ns - (attempt.heard_ns or attempt.seen_ns) > stale_seconds * 1e9


def _attempt_end(
    attempt: Attempt, later: Attempt | None, end_ns: int, stale_seconds: float | None
) -> tuple[int, bool]:
    """Where an attempt's time ends, and whether it died: an attempt that nobody ended ends at its last beat."""
    known = attempt.known_end_ns()
    if known is None and later is not None:
        known = min(attempt.beat_ns(), max(later.start_ns, attempt.start_ns))
    if known is not None:
        return known, attempt.ended != "finished"
    if _is_stale(attempt, end_ns, stale_seconds):
        return attempt.beat_ns(), False
    return max(end_ns, attempt.start_ns), False


def _split_stragglers(run: Run, cuts: dict[tuple[int, int], Cut], limits) -> Straggler:
    together: dict[tuple, list] = {}
    groups = {}
    for (rank, number), one in cuts.items():
        groups[rank] = group = run.attempts[rank, number].group
        limit = limits[rank, number]
        for step in one.steps:
            if step.step <= limit:
                together.setdefault((number, group, step.step, step.count), []).append((rank, step))
    return split(together, groups)


def _rank_account(rank, attempts, cuts, limits, restarts, window, typical) -> RankAccount:
    """Lay the rank's attempts end to end over the run's window."""
    (start, end), (devices, peak) = window, typical
    result = RankAccount(rank)
    if not attempts:
        # A rank that nobody reported is taken to have the devices of the others, and to have done nothing.
        result.devices, result.peak, result.flops = devices, peak, 0.0
    else:
        newest = attempts[-1]
        result.host, result.devices = newest.host, newest.devices
        result.peak, result.gpu_hour_cost = newest.peak_flops_per_second, newest.gpu_hour_cost
        result.flops = None if any(a.flops_per_step is None for a in attempts) else 0.0
        result.observed = True
    at, before = start, _UNOBSERVED
    for attempt in attempts:
        one = cuts[attempt.rank, attempt.attempt]
        gap = one.start_ns - at
        if gap < 0:
            # It began before the run's given start or before the last one's end was seen: that much is not new.
            _trim(one, -gap)
            gap = 0
        result.states[before] += gap
        restart = restarts.get(attempt.attempt)
        if restart is not None:
            restart.devices += attempt.devices
            restart.down_gpu_ns += gap * attempt.devices if before == _DOWN else 0
        _add_attempt(result, attempt, one, limits[attempt.rank, attempt.attempt], restarts)
        at = max(at, one.end_ns)
        before = _DOWN if attempt.known_end_ns() is not None or attempt is not attempts[-1] else _UNOBSERVED
    result.states[before] += max(end - at, 0)
    return result


def _typical(run: Run) -> tuple[int, float | None]:
    """Devices per rank, and the peak if all ranks that were seen have the same."""
    attempts = list(run.attempts.values())
    peaks = {a.peak_flops_per_second for a in attempts}
    return max((a.devices for a in attempts), default=1), peaks.pop() if len(peaks) == 1 else None


def _add_attempt(result: RankAccount, attempt: Attempt, one: Cut, limit: int, restarts) -> None:
    """Add an attempt's steps, kept or lost, its gaps and its tail."""
    lost_ns = 0
    for step in one.steps:
        kept = max(0, min(step.count, step.count - (step.step - limit)))
        if kept < step.count:
            # Of steps whose single rows are not known the lost part is taken in proportion to their number.
            lost = step.length_ns * (step.count - kept) // step.count
            states = share(step.states, step.length_ns - lost, step.length_ns)
            lost_ns += lost
            result.lost_steps += step.count - kept
            _blame(restarts, attempt, step, step.count - kept, lost)
        else:
            states = step.states
        for i, ns in enumerate(states):
            result.states[i] += ns
        result.kept_ns += sum(states) - states[_COMPILE] - states[_STALL]
        result.kept_steps += kept
        if result.flops is not None:
            result.flops += kept * attempt.flops_per_step
    for part in (one.gaps, one.tail):
        for i, ns in enumerate(part):
            result.states[i] += ns
    if one.unfinished:
        result.kept_ns += sum(one.tail)
    result.states[_LOST] += lost_ns
    later = [number for number in restarts if number > attempt.attempt]
    if later:
        restarts[min(later)].lost_gpu_ns += one.tail[_LOST] * attempt.devices


def _blame(restarts: dict[int, Restart], attempt: Attempt, step, count: int, lost_ns: int) -> None:
    """Charge lost steps to the first later restart that resumed before them."""
    for number, restart in restarts.items():
        if number > attempt.attempt and restart.resume_step is not None and restart.resume_step < step.step:
            restart.lost_steps += count
            restart.lost_gpu_ns += lost_ns * attempt.devices
            return


def _trim(one: Cut, ns: int) -> None:
    """Take `ns` off the beginning of an attempt: its gaps first, then its steps in order, then its tail."""
    ns = min(ns, one.end_ns - one.start_ns)
    one.start_ns += ns
    one.clamped += 1
    for part in (one.gaps, *(step.states for step in one.steps), one.tail):
        for i in range(len(part)):
            taken = min(part[i], ns)
            part[i] -= taken
            ns -= taken
    for step in one.steps:
        step.length_ns = sum(step.states)
