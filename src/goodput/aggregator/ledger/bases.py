"""Bases: for each tier of a run that is not over, the segment up to which its steps may be thinned to that tier.

Its account never goes on from before the first of them again, but where steps that were folded turn out to be lost, or
late. Where such a fold has made the segment of a base wrong, and it was dropped, the base stands for nothing until it
moves on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import sqlalchemy as sql

from goodput.aggregator.ledger import segments
from goodput.aggregator.ledger.ledger import Ledger
from goodput.aggregator.ledger.migrations.versions import version_7

_bases = version_7.bases


class Base(NamedTuple):
    run: str
    tier: int
    rows: int  # of the segment


def stored(fetch: Callable[..., Any], run: str | None = None) -> list[Base]:
    """The bases of one run or of all, of the coarsest tier first."""
    query = sql.select(_bases.c.run, _bases.c.tier, _bases.c.rows).order_by(
        _bases.c.tier.desc(), _bases.c.run
    )
    return [Base(*row) for row in fetch(query if run is None else query.where(_bases.c.run == run))]


def put(ledger: Ledger, base: Base) -> None:
    """Set the base of a tier; not where its segment was dropped."""
    with ledger.transaction({base.run}) as connection:
        if segments.numbers(connection.execute, base.run, base.rows) is not None:
            of_tier = _bases.c.run == base.run, _bases.c.tier == base.tier
            connection.execute(_bases.delete().where(*of_tier))
            connection.execute(_bases.insert(), [base._asdict()])
