"""Rank and node reports as an agent would push them, built from account_history.Process."""

from __future__ import annotations

from msgspec.structs import replace
from support.account.account_history import Process, ns

from goodput.aggregator.ingest.pushed_steps import in_version_2
from goodput.wire import schema
from goodput.wire.step_columns import decode, step_rows


def rank_report(one: Process, run: str = "r1", *, rows=None, events=None, **given) -> schema.RankReport:
    """One report of a process as it is now; `rows` and `events` are what it brings, by default everything.

    The sequence grows with the process's clock. `given` replaces fields of the identity.
    """
    identity = {"world_size": 1 + one.rank, "host": f"n{one.rank}", **one.identity, **given}
    identity = {"pid": 1000 * one.number + one.rank, "start_ns": one.start_ns, **identity}
    live = schema.Live(
        now_ns=one.now_ns,
        last_ns=one.last_ns,
        phase=one.phase,
        step_next=one.step_next,
        steps_done=len(one.rows),
        samples=one.samples,
        alive=one.alive,
        ended=one.ended,
        end_ns=one.end_ns,
        totals=tuple(one.totals),
        hardware=dict(one.hardware),
    )
    return schema.RankReport(
        identity=schema.Identity(run=run, rank=one.rank, attempt=one.number, **identity),
        sequence=2 * one.now_ns + bool(one.ended or not one.alive),
        phases=one.phases,
        live=live,
        phase_states=one.user,
        steps=[schema.StepRow(*row) for row in (one.rows if rows is None else rows)],
        events=[schema.EventRow(*event) for event in (one.events if events is None else events)],
    )


def node_report(
    *ranks: schema.RankReport, node: str = "n", sent_ns: int = 0, health=(), **given
) -> schema.NodeReport:
    return schema.NodeReport(node=node, sent_ns=sent_ns, ranks=list(ranks), health=list(health), **given)


def health_event(number: int, seconds: float, *ranks: int, run: str = "r1", **given) -> schema.Health:
    fields = {"kind": "xid", "device": "GPU-5d", "severity": "warning", **given}
    return schema.Health(number, time_ns=ns(seconds), hits=[(run, rank) for rank in ranks], **fields)


def body_of(*ranks: schema.RankReport, version: int = schema.VERSION, **given) -> bytes:
    """A push of these ranks, whose steps are rows in version 1 and blocks in version 2."""
    ranks = ranks if version == 1 else tuple(map(in_version_2, ranks))
    return schema.encode(replace(node_report(*ranks, **given), version=version))


def in_rows(report: schema.RankReport) -> schema.RankReport:
    """The report with all its steps as rows."""
    columns = decode(report.blocks, len(report.phases))
    rows = step_rows(columns, 0, len(columns), len(report.phases))
    return replace(report, steps=[*report.steps, *rows], blocks=[])


def story(run: str = "r1", ranks: int = 2, start: float = 1000.0) -> list[list[schema.RankReport]]:
    """A run as its reports came, push by push: 12 steps, a kill, a restart from step 7, 8 steps, the end.

    Rows and events are in the push after they happened; each push repeats nothing.
    """
    pushes = []
    first = [Process(r, 1, start + r / 8, **_rates(ranks)).between(none=1) for r in range(ranks)]
    pushes.append([rank_report(one, run) for one in first])
    pushes += _steps(first, run, 12, checkpoint_at=7)
    end = max(one.now_ns for one in first) / 1e9
    pushes.append(
        [rank_report(one.begun(forward=0.25).killed(after=0.5), run, rows=[], events=[]) for one in first]
    )
    again = [Process(r, 2, end + 4, user={"augment": "loader"}, **_rates(ranks)) for r in range(ranks)]
    for one in again:
        one.between(none=1, restore=2).resumed(7)
    pushes.append([rank_report(one, run) for one in again])
    pushes += _steps(again, run, 8, checkpoint_at=3, augment=0.125)
    pushes.append([rank_report(one.finished(), run, rows=[], events=[]) for one in again])
    return pushes


def _rates(ranks: int) -> dict:
    rates = {"flops_per_step": 2e12, "peak_flops_per_second": 8e12, "gpu_hour_cost": 2.5}
    return {"world_size": ranks, "devices": 2, "device": "NVIDIA H100 80GB HBM3", **rates}


def _steps(processes: list[Process], run: str, count: int, checkpoint_at: int, **more) -> list:
    pushes = []
    for i in range(count):
        new = []
        for one in processes:
            events = len(one.events)
            wait = one.rank / (4 * len(processes))
            one.step(
                loader=0.125 + wait, forward=0.5, backward=0.5, communication=0.5 - wait, samples=32, **more
            )
            if i == checkpoint_at:
                one.between(checkpoint=0.25).saved()
            new.append(rank_report(one, run, rows=one.rows[-1:], events=one.events[events:]))
        pushes.append(new)
    return pushes
