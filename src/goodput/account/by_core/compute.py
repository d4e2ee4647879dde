"""The account of a run whose rows are at hand, by the compiled core.

account = compute(run, now_ns=time.time_ns()); account.ratio("goodput")
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

from goodput._core import PLANNED_STATES
from goodput.account.account import Account, PaidOnce, RowSums, account_of, rank_account, typical
from goodput.account.attempts import Run
from goodput.account.by_core.attempt_sums import AttemptSums, since
from goodput.account.by_core.engine import CoreEngine
from goodput.account.by_core.stragglers import sum_stragglers
from goodput.account.facts import Facts, Key, gather
from goodput.account.hardware import is_cut
from goodput.account.resume import Restart
from goodput.account.stall_threshold import PlannedLimits
from goodput.defaults import STALL_SECONDS
from goodput.slices import AT_A_TIME, Slices, result_of

Window = tuple[int | None, int | None]  # unix ns, None for the run's own start or end


def compute(
    run: Run,
    now_ns: int,
    *,
    stall_seconds: float = STALL_SECONDS,
    stale_seconds: float | None = None,
    known_only: bool = False,
    window: Window | None = None,
) -> Account:
    """The account of `run` at `now_ns` (unix ns).

    `stall_seconds` is the least length of a stall. With `stale_seconds`, an attempt without a report for
    that long is `unobserved` from its last report on; without, a process last seen alive counts as alive. With
    `known_only` the account of a running run ends at the last moment up to which all its ranks were observed, so
    nothing is guessed; else each rank is taken to be still in its last phase. `window` (start_ns, end_ns) limits
    the account to a part of the run, either end None for the run's own; steps are still kept or lost by the whole run.

    That of a window is the account up to its end less the one up to its start. Raises CoreError where the core cannot be
    loaded.
    """

    def engine_until(end_ns: int | None) -> CoreEngine:
        part = None if end_ns is None else (None, end_ns)
        engine = CoreEngine(run, gather(run, now_ns, 0, stale_seconds, known_only, part), stall_seconds)
        engine.all_rows(chain.from_iterable(engine.facts.by_rank.values()))
        return engine

    start_ns, end_ns = window or (None, None)
    engine = engine_until(end_ns)
    if start_ns is None:
        return result_of(finishing(engine))
    facts = gather(run, now_ns, 0, stale_seconds, known_only, window)
    before = engine_until(start_ns) if facts.start_ns > engine.facts.start_ns else None
    return result_of(finishing(engine, facts, before))


def finishing(
    engine: CoreEngine, facts: Facts | None = None, before: CoreEngine | None = None
) -> Slices[Account]:
    """The account once all rows are taken, in slices.

    For a window `engine` has the run up to its end and `before` up to its start, and `facts` are those of the window. A
    stall threshold that is set there stands, else it follows from the rows.
    """
    run, facts = engine.run, engine.facts if facts is None else facts
    whole = yield from engine.summing()
    facts.threshold_ns = facts.threshold_ns or _threshold_ns(facts, whole, engine.least_threshold_ns)
    earlier = None if before is None else (yield from before.summing())
    sums = whole if earlier is None else {key: since(own, earlier.get(key)) for key, own in whole.items()}
    yield
    restarts = {n: Restart(n, facts.starts[n], facts.points[n]) for n in facts.restarts}
    once, usual, ranks = PaidOnce(facts), typical(run), []
    for at, some in enumerate(facts.expected.apart(facts.by_rank)):
        if at % AT_A_TIME == 0:
            yield
        ranks.append(rank_account(facts, sums, some, restarts, usual, once))
    straggler = yield from sum_stragglers(engine, sums, before)
    account = account_of(
        run, facts, _sums_of_all(engine, facts, sums), straggler, ranks, list(restarts.values())
    )
    account.planned = _planned(engine)
    account.once = once.total(account.gpu_ns())
    return account


def _threshold_ns(facts: Facts, sums: Mapping[Key, AttemptSums], least_ns: int) -> int:
    """Of the run: the longest of its ranks' thresholds at the end; the least where no step length is known."""
    newest = [sums[own[-1].rank, own[-1].attempt] for own in facts.by_rank.values()]
    return max((one.threshold_ns for one in newest if one.lengths), default=least_ns)


def _sums_of_all(engine: CoreEngine, facts: Facts, sums: Mapping[Key, AttemptSums]) -> RowSums:
    end_ns = max((own.end_ns for own in sums.values() if own.rows), default=None)
    limits, cut = engine.facts.limits, engine.wrong + sum(is_cut(engine.run.attempts[key]) for key in sums)
    return RowSums(
        None if end_ns is None else min(end_ns, facts.end_ns) if facts.is_part else end_ns,
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
                found.longest[rank, state] = ns
    return found
