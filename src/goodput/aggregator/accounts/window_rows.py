"""Step rows of one attempt within a time window, read from the ledger."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import astuple

from goodput.account.attempts import Row
from goodput.account.fold import OTHERS_MAX, Fold
from goodput.aggregator.ledger.ledger import Ledger
from goodput.wire import schema

# How far back to search for the last row before a window; ten times further each time none is found.
SEARCH_BACK_NS = 60 * 10**9


def rows_of(ledger: Ledger, identity: schema.Identity, key, fold: Fold) -> Iterator[tuple]:
    """(end_ns, key, row) of an attempt's rows, from the start of its bound to the first row that ends beyond it."""
    before, bound = None, fold.bound
    if bound.from_ns > fold.attempt.start_ns:
        before = _row_before(ledger, identity, bound.from_ns, fold.attempt.start_ns)
        if before is not None:
            fold.begin(Row(*astuple(before)))
    for row in ledger.rows(identity, start_ns=bound.from_ns if before else None):
        if before is None or row.number > before.number:
            yield row.end_ns, key, row
            # This row covers the rest of the bound; an attempt's first step is compared with the OTHERS_MAX after it.
            if row.end_ns >= bound.to_ns and (before is not None or row.number > OTHERS_MAX):
                break
    fold.exhausted = True


def _row_before(
    ledger: Ledger, identity: schema.Identity, at_ns: int, start_ns: int
) -> schema.StepRow | None:
    """The last row that ended before `at_ns`, None if there is none."""
    back = SEARCH_BACK_NS
    while True:
        found = None
        for row in ledger.rows(identity, start_ns=at_ns - back, end_ns=at_ns):
            if row.end_ns >= at_ns:
                break
            found = row
        if found is not None or at_ns - back <= start_ns:
            return found
        back *= 10
