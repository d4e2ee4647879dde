"""Moves the times of a process onto the aggregator's clock where its own is surely seconds off.

A process stamps everything by the clock that it read at its start, so one offset is right for all of its life, also when
its node's clock is set meanwhile. It is decided at the process's first report and then kept with the process, in its field
`clock_moved_seconds`, by which its start and all its times are moved before they are stored: the account, its windows, the
ledger, a run log and a restart have the same times. A process whose offset is not known then, or whose clock differs by
less than clock.SKEW_NS for sure, keeps its own times.

That of a node that is behind is known from its second push on, so an agent's first one has no ranks; so is its first after
one that failed. Not known it is where the aggregator was restarted between two pushes that were both answered (for
processes that began in between), over a stream where an ingest worker was (an aggregator there takes the worker's
bounds), and to clients that push ranks at once: their processes then keep their own times. No trainer pushes by itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from goodput.aggregator.clock import Offset
from goodput.aggregator.ingest.node_clocks import NodeClocks
from goodput.aggregator.ingest.pushed_steps import PushedSteps
from goodput.aggregator.ingest.report_times import AHEAD_NS_MAX
from goodput.aggregator.ingest.store import Store, key_of
from goodput.aggregator.ingest.waiting_pushes import Push
from goodput.wire import schema
from goodput.wire.step_blocks import END, START

# Moved by whole milliseconds, so that the seconds of the field are exactly the ns that were added.
_UNIT_NS = 10**6


def moved_ns(store: Store, clocks: NodeClocks, push: Push, report: schema.RankReport) -> int:
    """By how much the times of a report are to be moved: as before where its process is known, 0 for most."""
    key = key_of(report.identity)
    known_ns = store.moved.get(report.identity.run, {}).get(key)
    if known_ns is not None or key in store.processes:
        return known_ns or 0
    return 0 if push.offset is None else _decided(push.offset, clocks, push, report)


def _decided(offset: Offset, clocks: NodeClocks, push: Push, report: schema.RankReport) -> int:
    # The page and the node's clock were read at the same moment; the process may have begun before its node's clock was set.
    apart_ns = report.live.now_ns - report.sequence if push.page_age_ns(report.sequence) is not None else 0
    return _correction_ns(offset.plus(apart_ns - clocks.reference_ns()))


def moved(
    store: Store, clocks: NodeClocks, push: Push, report: schema.RankReport, steps: PushedSteps
) -> tuple[schema.RankReport, PushedSteps]:
    """A report of a push, whose field no agent sets, and its steps, which are decoded, moved where that is to be."""
    ns = moved_ns(store, clocks, push, report)
    identity, live = report.identity, report.live
    if not ns:
        if identity.clock_moved_seconds is not None:
            report = replace(report, identity=replace(identity, clock_moved_seconds=None))
        return report, steps
    times = {name: _moved(getattr(live, name), ns) for name in ("now_ns", "last_ns", "end_ns")}
    moved = replace(
        report,
        identity=replace(identity, start_ns=max(identity.start_ns + ns, 0), clock_moved_seconds=ns / 1e9),
        live=replace(live, **times),
        events=[replace(event, time_ns=_moved(event.time_ns, ns)) for event in report.events],
        blocks=[],
    )
    return moved, _moved_steps(steps, ns)


def _moved_steps(steps: PushedSteps, ns: int) -> PushedSteps:
    if not steps.values.shape[1]:
        return steps
    values = np.array(steps.values)
    values[[START, END]] = np.maximum(values[[START, END]] + ns, 0)
    return steps._replace(
        values=values, start_ns=max(steps.start_ns + ns, 0), end_ns=max(steps.end_ns + ns, 0), packed=b""
    )


def moved_events(
    events: Sequence[schema.Health], offset: Offset | None, clocks: NodeClocks
) -> Sequence[schema.Health]:
    """Health events of a node, moved where its clock is off."""
    if not events or offset is None:
        return events
    ns = _correction_ns(offset.plus(-clocks.reference_ns()))
    return [replace(event, time_ns=_moved(event.time_ns, ns)) for event in events] if ns else events


def _correction_ns(found: Offset) -> int:
    """0 where the clocks may differ by less than SKEW_NS, and by so much that the times are refused."""
    if not found.is_skewed or abs(found.ns) > AHEAD_NS_MAX:
        return 0
    return -round(found.ns / _UNIT_NS) * _UNIT_NS


def _moved(time_ns: int, ns: int) -> int:
    """0 is no time."""
    return max(time_ns + ns, 1) if time_ns else 0
