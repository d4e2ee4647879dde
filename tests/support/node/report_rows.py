"""Rows and reports of a rank, as a rank page would give them."""

from goodput.wire import schema

PHASES = ("none", "loader", "forward")


def identity(rank=0, attempt=1, **given) -> schema.Identity:
    fields = {"run": "r1", "world_size": 64, "host": "n0", "pid": 1, "start_ns": 0, **given}
    return schema.Identity(rank=rank, attempt=attempt, **fields)


def row(number: int, step: int, totals=None, outside=None) -> schema.StepRow:
    totals = totals or (0, number, 10 * number)
    return schema.StepRow(
        number, step, 1000 * number, 1000 * number + 900, number, totals, outside or (0,) * len(totals)
    )


def event(number: int, kind: str, step: int) -> schema.EventRow:
    return schema.EventRow(number, kind, number, step)


def report(rows=(), events=(), sequence=1, rank=0, phases=PHASES, alive=True, **given) -> schema.RankReport:
    live = schema.Live(
        now_ns=sequence, last_ns=0, phase="none", step_next=0, steps_done=0, samples=0, alive=alive, ended="",
        end_ns=0, totals=(0,) * len(phases),
    )  # fmt: skip
    return schema.RankReport(identity(rank, **given), sequence, phases, live, {}, list(rows), list(events))
