"""Moves the base of a run that is not over on, so that its older steps may be thinned; see ledger/bases.py."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from goodput.aggregator.accounts.past import Past
from goodput.aggregator.accounts.stored_states import States
from goodput.aggregator.ledger import bases
from goodput.aggregator.ledger.bases import Base
from goodput.aggregator.ledger.ledger import Ledger


def moving(ledger: Ledger, past: Past, tier: int, before_ns: int) -> Iterator[None]:
    """Move a run's base of a tier on to the newest state that ends before a time and is right; yields after each state.

    Raises LedgerError.
    """
    run, facts, states = past.run.name, past.facts((None, None)), States(ledger, past.run)
    before = next((one.rows for one in bases.stored(ledger.fetch, run) if one.tier == tier), -1)
    first = bisect_right(states.rows, before)
    for at in reversed(range(first, states.count_before(before_ns))):
        engine = states.engine(at, facts, past.stall_seconds)
        yield
        if engine is not None:
            bases.put(ledger, Base(run, tier, states.rows[at]))
            return
