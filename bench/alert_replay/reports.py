"""What node agents would push of the ranks on their nodes, and the series that they serve of them.

In: jobs, a moment, the nodes whose agent lives. Out: schema.RankReport with the rows and events that were not
acknowledged yet; values by series. Ranks of nodes without an agent keep what they have until one is back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bench.alert_replay.trainer import COLUMN, PAGE_KEPT_SECONDS, PHASES, Job, Life, absolute, ns
from goodput.wire import schema

DEVICE = "NVIDIA H100 80GB HBM3"
Key = tuple[str, tuple[tuple[str, str], ...]]  # a series: its name, its labels sorted by name


def gpu_of(node: str, index: int) -> str:
    return f"GPU-{node}-{index}"


def push(
    job: Job, now: float, has_agent: Callable[[str], bool]
) -> Iterator[tuple[Life, int, schema.RankReport]]:
    """(life, rank, report) of all that is to be told now."""
    for life in list(job.over):
        for rank, (node, _) in enumerate(life.start.places):
            if has_agent(node) and not life.told_end[rank]:
                yield life, rank, report(job, life, rank, now)
        if not life.alive and all(life.told_end):
            job.over.remove(life)
            life.rows.clear()


def acknowledge(life: Life, rank: int) -> None:
    """The aggregator has it."""
    life.sent_rows[rank], life.sent_events[rank] = len(life.rows), len(life.events)
    life.told_end[rank] = not life.alive


def report(job: Job, life: Life, rank: int, now: float) -> schema.RankReport:
    phase, last_ns, totals = life.live[rank]
    rows = life.rows[life.sent_rows[rank] :]
    kept = [row for row in rows[:-1] if row.kept] + rows[-1:]
    live = schema.Live(
        now_ns=absolute(ns(now)),
        last_ns=absolute(last_ns),
        phase=phase,
        step_next=life.step,
        steps_done=life.done,
        samples=life.samples,
        alive=life.alive,
        ended=life.ended,
        end_ns=absolute(life.end_ns) if not life.alive else 0,
        totals=tuple(totals),
        cost_ns=life.cost_ns,
    )
    return schema.RankReport(
        identity=_identity(job, life, rank),
        sequence=2 * ns(now) + (not life.alive),
        phases=PHASES,
        live=live,
        steps=[schema.StepRow(*one.row, tuple(one.totals[rank]), tuple(one.outside[rank])) for one in kept],
        events=life.events[life.sent_events[rank] :],
    )


def _identity(job: Job, life: Life, rank: int) -> schema.Identity:
    node, index = life.start.places[rank]
    return schema.Identity(
        run=job.run,
        rank=rank,
        attempt=life.number,
        world_size=life.start.world or life.ranks,
        host=node,
        pid=1000 * life.number + rank,
        start_ns=absolute(life.begin_ns),
        device=DEVICE,
        device_uuid=gpu_of(node, index),
        dtype="bfloat16",
        flops_per_step=job.flops_per_step,
        gpu_hour_cost=2.5,
    )


def series(job: Job, now: float, node: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """What the agent of a node serves of a job's newest ranks there. A dead rank's page stays for a minute."""
    life = job.life
    if life is None or (now - life.end_ns / 1e9 > PAGE_KEPT_SECONDS and not life.alive):
        return
    for rank, (host, index) in enumerate(life.start.places):
        if host != node:
            continue
        who = {"run": job.run, "rank": str(rank)}
        phase, last_ns, totals = life.live[rank]
        place = {"host": host, "device": DEVICE, "gpu_uuid": gpu_of(host, index), "group": "", "stage": ""}
        yield "goodput_rank_info", {**who, "attempt": str(life.number), **place}, 1
        yield "goodput_rank_alive", who, float(life.alive)
        if life.alive:
            age = now - last_ns / 1e9
            yield "goodput_rank_beat_age_seconds", who, age
            yield "goodput_rank_phase_age_seconds", {**who, "phase": phase}, age
            yield "goodput_gpu_rank_info", {"gpu": gpu_of(host, index), **who}, 1
            yield "goodput_rank_process_known", who, 1
        yield "goodput_rank_step", who, life.step - 1
        yield "goodput_steps_total", who, life.done
        yield "goodput_samples_total", who, life.samples
        yield "goodput_sdk_cost_seconds_total", who, life.cost_ns / 1e9
        yield "goodput_sdk_budget_ratio", who, 0.01
        yield "goodput_sdk_phases_every", who, 1
        for name, column in COLUMN.items():
            yield "goodput_phase_seconds_total", {**who, "phase": name, "clock": "host"}, totals[column] / 1e9
