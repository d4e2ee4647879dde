"""Pushes of ranks that are known, decoded and checked in one compiled pass (wire/_reports.c).

From one push to the next an agent's reports differ in their live parts and steps; identities and phases are the same, byte
for byte. So these are decoded and checked once and found by their bytes from then on, in some 450 bytes a rank. A push in
which anything is unusual, unknown or wrong is left to the schema, which names what is wrong. So both accept the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from goodput.aggregator.ingest.pushed_steps import PushedSteps
from goodput.aggregator.ingest.store import Store
from goodput.aggregator.ingest.waiting_pushes import Part
from goodput.wire import compiled, schema
from goodput.wire.step_blocks import TOTALS

_ENDS = ("", "finished", "failed", "resumed")
# More than so many identities for each process, and some, are those of processes that have gone.
STALE_TIMES, STALE_MORE = 2, 1024


_live_decoder = msgspec.msgpack.Decoder(schema.Live)


class _Known(NamedTuple):
    """What was decoded from the bytes of an identity, with the bytes of the phases and their states beside it."""

    phases_bytes: bytes
    states_bytes: bytes
    identity: schema.Identity
    phases: tuple[str, ...]
    phase_states: dict[str, str]


class KnownRanks:
    """The identities and phases that a store has accepted, by their bytes."""

    def __init__(self, store: Store):
        self._store = store
        self._known: dict[bytes, _Known] = {}
        self._shared: dict[bytes, bytes] = {}

    def decode(self, body: bytes, rows_max: int) -> tuple[schema.NodeReport, list[Part]] | None:
        """A push of known ranks with `rows_max` steps at most: the report, whose ranks have no blocks, and its parts.

        None for any other push. The parts are as `checks.checked` has them, with their steps decoded.
        """
        found = self._pass(body, rows_max)
        if found is None or any(len(rank) == 1 for rank in found[2]):
            return None
        node, sent_ns, ranks, *more = found
        parts = []
        for (_, _, identity, phases, states), sequence, live, of_steps in ranks:
            if type(live) is bytes:
                live = _decode_live(live, phases)
                if live is None:
                    return None
            rows, heads, values, packed = of_steps
            if rows:
                first, last, step, start, end = heads
                columns = np.frombuffer(values, np.int64).reshape(-1, rows)
                steps = PushedSteps(columns, first, last, step, start, end, packed)
            else:
                steps = PushedSteps(np.zeros((TOTALS + 2 * len(phases), 0), np.int64))
            parts.append(Part(schema.RankReport(identity, sequence, phases, live, states), steps))
        previous_sent_ns, previous_took_ns, agent = more
        report = schema.NodeReport(
            node,
            sent_ns,
            [part.report for part in parts],
            previous_sent_ns=previous_sent_ns or 0,
            previous_took_ns=previous_took_ns or 0,
            agent=agent or "",
        )
        return report, parts

    def note(self, body: bytes, ranks: Sequence[schema.RankReport], rows_max: int) -> None:
        """Know the ranks of a push that was merged."""
        found = self._pass(body, rows_max)
        if found is None:
            return
        if len(self._known) > STALE_TIMES * len(self._store.processes) + STALE_MORE:
            self._known.clear()
            self._shared.clear()
        for report, rank in zip(ranks, found[2], strict=True):
            process = self._store.accepted(report) if len(rank) == 1 else None
            if process is not None:
                key, *texts = rank[0]
                phases, states = (self._shared.setdefault(text, text) for text in texts)
                attempt = process.attempt
                # The store's own objects, so that hardly more memory is taken.
                self._known[key] = _Known(
                    phases, states, process.identity, attempt.phases, attempt.phase_states
                )

    def _pass(self, body: bytes, rows_max: int) -> tuple | None:
        # Not in an extension that was built from an earlier checkout.
        compiled_pass = getattr(compiled.steps, "known_ranks", None)
        return compiled_pass and compiled_pass(body, self._known, schema.Live, _ENDS, rows_max)


def _decode_live(live: bytes, phases: tuple[str, ...]) -> schema.Live | None:
    """A live part with more than every report has, such as operations of process groups; None if it is wrong."""
    try:
        found = _live_decoder.decode(live)
        schema.check_live(found, phases, "")
    except (msgspec.DecodeError, RecursionError, ValueError):
        return None
    return found
