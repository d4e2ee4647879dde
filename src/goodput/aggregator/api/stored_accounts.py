"""What the ledger keeps of a run that is over: its account in integers, its document, and its row in the list of runs."""

from __future__ import annotations

import logging
import zlib
from collections import Counter
from dataclasses import replace

import msgspec

from goodput.account import Account, document
from goodput.aggregator.accounts.run_summaries import summary_of
from goodput.aggregator.ledger import closed_runs
from goodput.aggregator.ledger.ledger import Ledger
from goodput.causes import explain

log = logging.getLogger("goodput.aggregator")


def bodies_of(account: Account) -> dict[str, bytes]:
    """What is stored, by kind."""
    return {
        closed_runs.ACCOUNT: msgspec.msgpack.encode(_storable(account)),
        closed_runs.DOCUMENT: msgspec.json.encode(document(account, explain(account))),
        closed_runs.SUMMARY: msgspec.json.encode(summary_of(account)),
    }


def decoded_account(ledger: Ledger, run: str) -> Account | None:
    """The stored account of a run that has not gone on since, None where its steps are to be folded."""
    try:
        stored = closed_runs.stored_account(ledger, run, closed_runs.ACCOUNT)
        return None if stored is None else _decoder.decode(stored)
    except (msgspec.DecodeError, zlib.error) as error:
        log.warning("run %r: its stored account cannot be read, its steps are folded: %s", run, error)
        return None


def _storable(account: Account) -> Account:
    """Without columns, and without what an alert compares ranks by, which none does once a run is over."""
    straggler = account.straggler
    plain = {name: dict(getattr(straggler, name)) for name in ("own_ns", "onsets", "phases", "phases_before")}
    return replace(account, ranks=list(account.ranks), straggler=replace(straggler, comparable=None, **plain))


def _counter(_type: type, value: object) -> Counter:
    """Build a Counter, the only type in an Account that msgspec does not build."""
    return Counter(value)  # type: ignore[arg-type]


_decoder = msgspec.msgpack.Decoder(Account, dec_hook=_counter)
