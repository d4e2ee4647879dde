"""The account of a run whose rows are at hand, by the compiled core.

    account = compute(run, now_ns=time.time_ns()); account.ratio("goodput")
"""

from __future__ import annotations

from collections.abc import Mapping

from goodput._core import PLANNED_STATES
from goodput.account.account import Account, FoldSums, PaidOnce, account_of, rank_account, typical
from goodput.account.attempts import Run
from goodput.account.by_core.attempt_sums import AttemptSums
from goodput.account.by_core.engine import CoreEngine
from goodput.account.by_core.stragglers import sum_stragglers
from goodput.account.facts import Facts, Key, gather
from goodput.account.hardware import is_cut
from goodput.account.resume import Restart
from goodput.account.stall_threshold import PlannedLimits
from goodput.account.states import INDEX
from goodput.defaults import STALL_SECONDS

_BEFORE_ALL_NS = -(1 << 62)


def compute(
    run: Run,
    now_ns: int,
    *,
    stall_seconds: float = STALL_SECONDS,
    stale_seconds: float | None = None,
    known_only: bool = False,
    window: tuple[int | None, int | None] | None = None,
) -> Account:
    """The account of `run` at `now_ns` (unix ns).

    `stall_seconds` is the least length of a stall. With `stale_seconds`, an attempt without a report for
    that long is `unobserved` from its last report on; without, a process last seen alive counts as alive. With
    `known_only` the account of a running run ends at the last moment up to which all its ranks were observed, so
    nothing is guessed; else each rank is taken to be still in its last phase. `window` (start_ns, end_ns) limits
    the account to a part of the run, either end None for the run's own; steps are still kept or lost by the whole run.

    Raises CoreError where the core cannot be loaded.
    """
    facts = gather(run, now_ns, 0, stale_seconds, known_only, window)
    engine = CoreEngine(run, facts, stall_seconds)
    for own in facts.by_rank.values():
        for attempt in own:
            engine.rows((attempt.rank, attempt.attempt), attempt.ordered_rows())
    return finish(engine)


def finish(engine: CoreEngine) -> Account:
    """The account once all rows are taken."""
    run, facts, sums = engine.run, engine.facts, engine.sums()
    facts.threshold_ns = _threshold_ns(facts, sums, engine.least_stall_ns)
    restarts = {n: Restart(n, facts.starts[n], facts.points[n]) for n in facts.restarts}
    once, usual = PaidOnce(facts), typical(run)
    ranks = [
        rank_account(facts, sums, some, restarts, usual, once) for some in facts.expected.apart(facts.by_rank)
    ]
    straggler = sum_stragglers(engine, sums)
    account = account_of(run, facts, _sums_of_all(engine, sums), straggler, ranks, list(restarts.values()))
    account.planned = _planned(engine)
    account.once = once.total(account.gpu_ns())
    return account


def _threshold_ns(facts: Facts, sums: Mapping[Key, AttemptSums], least_ns: int) -> int:
    """Of the run: the longest of its ranks' thresholds at the end; the least where no step length is known."""
    newest = [sums[own[-1].rank, own[-1].attempt] for own in facts.by_rank.values()]
    return max((one.threshold_ns for one in newest if one.lengths), default=least_ns)


def _sums_of_all(engine: CoreEngine, sums: Mapping[Key, AttemptSums]) -> FoldSums:
    limits, cut = engine.facts.limits, engine.wrong + sum(is_cut(engine.run.attempts[key]) for key in sums)
    return FoldSums(
        max((own.end_ns for own in sums.values() if own.rows), default=None),
        cut + sum(own.clamped for own in sums.values()),
        sum(own.samples for own in sums.values()),
        max((min(own.top_step, limits[key]) for key, own in sums.items()), default=-1),
    )


def _planned(engine: CoreEngine) -> PlannedLimits:
    found = PlannedLimits()
    for rank, own in engine.facts.by_rank.items():
        longest = engine.core.planned(engine.places[rank, own[-1].attempt])
        for state, ns in zip(PLANNED_STATES, longest, strict=True):
            if ns:
                found.longest[rank, INDEX[state]] = [(_BEFORE_ALL_NS, ns)]
    return found
