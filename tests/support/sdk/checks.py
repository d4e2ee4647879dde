"""What must hold of every page that the SDK wrote, whatever the training code did."""

from __future__ import annotations

from goodput.rank_page.reader import Snapshot, StepRecord


def inside(record: StepRecord, before: StepRecord | None) -> list[int]:
    """ns per phase within a step, given the record before it."""
    zeros = (0,) * len(record.totals)
    totals, outside = (before.totals, before.outside) if before else (zeros, zeros)
    columns = zip(record.totals, totals, record.outside, outside, strict=True)
    return [total - total_before - (out - out_before) for total, total_before, out, out_before in columns]


def check_records(snapshot: Snapshot) -> None:
    """Records follow each other, and every nanosecond between two ends is in one phase, inside or outside."""
    start = snapshot.identity["start_mono_ns"]
    before = None
    for record in snapshot.steps:
        if before is not None:
            assert record.number > before.number
            assert record.step > before.step
            assert record.samples >= before.samples
        # The first record that the ring still holds has nothing to be compared with, unless it is number 1.
        if before is None and record.number > 1:
            before = record
            continue
        last_end = before.end_ns if before else start
        whole = before is None or record.number == before.number + 1
        spent = inside(record, before)
        outside_before = before.outside if before else (0,) * len(record.outside)
        outside = [now - then for now, then in zip(record.outside, outside_before, strict=True)]
        assert min(spent) >= 0 and min(outside) >= 0, (spent, outside)
        assert sum(spent) + sum(outside) == record.end_ns - last_end
        if whole:
            assert sum(spent) == record.end_ns - record.start_ns
            assert sum(outside) == record.start_ns - last_end
        before = record


def check(snapshot: Snapshot) -> Snapshot:
    """A page between two boundaries or after its end: exact to the nanosecond."""
    check_records(snapshot)
    start = snapshot.identity["start_mono_ns"]
    assert sum(snapshot.totals) == snapshot.last_ns - start
    if snapshot.ended:
        assert snapshot.last_ns == snapshot.end_ns
        assert (
            snapshot.step_start_ns == 0
            or snapshot.steps_done == 0
            or snapshot.step_start_ns <= snapshot.end_ns
        )
    if snapshot.steps:
        last = snapshot.steps[-1]
        assert last.number == snapshot.steps_done
        assert last.end_ns <= snapshot.last_ns
        assert all(now >= then for now, then in zip(snapshot.totals, last.totals, strict=False))
    return snapshot
