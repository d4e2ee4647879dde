"""What node agents push of the ranks on their nodes: rows and events that were not acknowledged yet, and the live part."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from goodput.simulate.run import PHASES, Attempt, SimulatedRun
from goodput.simulate.scenario import DEVICE, gpu_uuid, nanoseconds, unix_ns
from goodput.wire import schema


def pending(
    run: SimulatedRun, now: float, has_agent: Callable[[str], bool]
) -> Iterator[tuple[Attempt, int, schema.RankReport]]:
    """(attempt, rank, report) of all that is to be pushed now. Ranks of nodes without an agent keep what they have."""
    for attempt in list(run.unreported):
        for rank, (node, _) in enumerate(attempt.plan.places):
            if has_agent(node) and not attempt.end_reported[rank]:
                yield attempt, rank, report(run, attempt, rank, now)
        if not attempt.alive and all(attempt.end_reported):
            run.unreported.remove(attempt)
            attempt.rows.clear()


def acknowledge(attempt: Attempt, rank: int) -> None:
    """Mark a rank's report as accepted by the aggregator."""
    attempt.sent_rows[rank], attempt.sent_events[rank] = len(attempt.rows), len(attempt.events)
    attempt.end_reported[rank] = not attempt.alive


def report(run: SimulatedRun, attempt: Attempt, rank: int, now: float) -> schema.RankReport:
    phase, boundary_ns, totals = attempt.live[rank]
    rows = attempt.rows[attempt.sent_rows[rank] :]
    kept = [row for row in rows[:-1] if row.kept] + rows[-1:]
    live = schema.Live(
        now_ns=unix_ns(nanoseconds(now)),
        last_ns=unix_ns(boundary_ns),
        phase=phase,
        step_next=attempt.step,
        steps_done=attempt.steps_done,
        samples=attempt.samples,
        alive=attempt.alive,
        ended=attempt.ended,
        end_ns=unix_ns(attempt.end_ns) if not attempt.alive else 0,
        totals=tuple(totals),
        cost_ns=attempt.cost_ns,
    )
    return schema.RankReport(
        identity=_identity(run, attempt, rank),
        sequence=2 * nanoseconds(now) + (not attempt.alive),
        phases=PHASES,
        live=live,
        steps=[
            schema.StepRow(*row.fields, tuple(row.totals[rank]), tuple(row.outside[rank])) for row in kept
        ],
        events=attempt.events[attempt.sent_events[rank] :],
    )


def _identity(run: SimulatedRun, attempt: Attempt, rank: int) -> schema.Identity:
    node, index = attempt.plan.places[rank]
    return schema.Identity(
        run=run.name,
        rank=rank,
        attempt=attempt.number,
        world_size=attempt.plan.world_size or attempt.ranks,
        host=node,
        pid=1000 * attempt.number + rank,
        start_ns=unix_ns(attempt.begin_ns),
        device=DEVICE,
        device_uuid=gpu_uuid(node, index),
        dtype="bfloat16",
        flops_per_step=run.plan.flops_per_step,
        peak_flops_per_second=run.plan.peak_flops_per_second,
        gpu_hour_cost=2.5,
        gpu_power_watts=620.0,
    )
