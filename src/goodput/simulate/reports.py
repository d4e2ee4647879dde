"""What node agents push of the ranks on their nodes: rows and events that were not acknowledged yet, and the live part."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from goodput.simulate import operations
from goodput.simulate.run import COLUMN, PHASES, Attempt, Row, SimulatedRun
from goodput.simulate.scenario import DEVICE, gpu_uuid, nanoseconds, unix_ns
from goodput.wire import schema


def pending(
    run: SimulatedRun,
    now: float,
    has_agent: Callable[[str], bool],
    ahead_ns: Callable[[str, float], int] = lambda node, at: 0,
    shift_ns: int = 0,
) -> Iterator[tuple[Attempt, int, schema.RankReport]]:
    """(attempt, rank, report) of all that is to be pushed now. Ranks of nodes without an agent keep what they have.

    `ahead_ns` is how far a node's clock was ahead at a moment; a process reads it once, when it starts. `shift_ns` is how
    much later than EPOCH_SECONDS the scenario begins, by the scheduler's clock.
    """
    for attempt in list(run.unreported):
        for rank, (node, _) in enumerate(attempt.plan.places):
            is_due = has_agent(node) and node not in attempt.silent and now >= attempt.begins_ns[rank] / 1e9
            if is_due and not attempt.end_reported[rank]:
                ahead = ahead_ns(node, attempt.begins_ns[rank] / 1e9)
                yield attempt, rank, report(run, attempt, rank, now, ahead, shift_ns)
        if not attempt.alive and all(attempt.end_reported):
            run.unreported.remove(attempt)
            attempt.rows.clear()


def acknowledge(attempt: Attempt, rank: int, now: float | None = None) -> None:
    """Mark a rank's report, made at `now`, as accepted by the aggregator."""
    attempt.sent_rows[rank], attempt.sent_events[rank] = len(attempt.rows), len(attempt.events)
    is_alive = attempt.alive if now is None else attempt.is_alive(rank, nanoseconds(now))
    attempt.end_reported[rank] = not is_alive


def report(
    run: SimulatedRun, attempt: Attempt, rank: int, now: float, ahead_ns: int = 0, shift_ns: int = 0
) -> schema.RankReport:
    """What the agent pushes of a rank; its process's clock is `ahead_ns` ahead, the scheduler's `shift_ns`."""
    phase, boundary_ns, totals = attempt.live[rank]
    alive = attempt.is_alive(rank, nanoseconds(now))
    rows = attempt.rows[attempt.sent_rows[rank] :]
    steps_done, step, samples = attempt.steps_done, attempt.step, attempt.samples
    behind = attempt.behind
    if behind is not None and behind.live[0] and behind.rank == rank:
        rows = [row for row in rows if row.fields[0] < behind.number]
        steps_done, step, samples = behind.number - 1, behind.step + 1, behind.samples
    kept = [row for row in rows[:-1] if row.kept] + rows[-1:]
    live = schema.Live(
        now_ns=unix_ns(nanoseconds(now)) + ahead_ns,
        last_ns=unix_ns(boundary_ns) + ahead_ns,
        phase=phase,
        step_next=step,
        steps_done=steps_done,
        samples=samples,
        alive=alive,
        ended=attempt.ended if not attempt.alive and rank not in attempt.dead else "",
        end_ns=0 if alive else unix_ns(attempt.rank_end_ns(rank)) + ahead_ns,
        totals=tuple(totals),
        cost_ns=attempt.cost_ns,
        operations=operations.rows(
            int(totals[COLUMN["communication"]]), steps_done, attempt.plan.world_size or attempt.ranks
        ),
    )
    return schema.RankReport(
        identity=_identity(run, attempt, rank, ahead_ns, shift_ns),
        sequence=2 * nanoseconds(now) + (not alive),
        phases=PHASES,
        live=live,
        steps=[_step_row(row, rank, ahead_ns) for row in kept],
        events=[
            schema.EventRow(one.number, one.kind, one.time_ns + ahead_ns, one.step)
            for one in attempt.events[attempt.sent_events[rank] :]
        ],
    )


def _step_row(row: Row, rank: int, ahead_ns: int) -> schema.StepRow:
    number, step, start_ns, end_ns, samples = row.fields
    totals, outside = tuple(row.totals[rank].tolist()), tuple(row.outside[rank].tolist())
    return schema.StepRow(number, step, start_ns + ahead_ns, end_ns + ahead_ns, samples, totals, outside)


def _identity(
    run: SimulatedRun, attempt: Attempt, rank: int, ahead_ns: int, shift_ns: int
) -> schema.Identity:
    node, index = attempt.plan.places[rank]
    submit, stages = attempt.plan.submit, run.plan.stages
    return schema.Identity(
        run=run.name,
        rank=rank,
        attempt=attempt.number,
        world_size=attempt.plan.world_size or attempt.ranks,
        host=node,
        pid=1000 * attempt.number + rank,
        start_ns=unix_ns(int(attempt.begins_ns[rank])) + ahead_ns,
        device=DEVICE,
        device_uuid=gpu_uuid(node, index),
        dtype="bfloat16",
        flops_per_step=run.plan.flops_per_step,
        peak_flops_per_second=run.plan.peak_flops_per_second,
        gpu_hour_cost=2.5,
        gpu_power_watts=620.0,
        stage=rank * stages // attempt.ranks if stages > 1 else None,
        microbatches=run.plan.microbatches if stages > 1 else None,
        submit_time=None if submit is None else (unix_ns(nanoseconds(submit)) + shift_ns) / 1e9,
    )
