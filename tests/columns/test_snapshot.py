"""The state of a fold is stored whole, and bytes that are no such state are refused."""

from __future__ import annotations

import random

import pytest
from support.account.account_history import Process, ns, run_of

from goodput.account.facts import gather
from goodput.account.fold import Fold
from goodput.account.peak_throughput import PeakThroughput
from goodput.account.slow_ranks.onset import Onset, Stretch
from goodput.account.stall_threshold import StepLengths
from goodput.aggregator.column_attempt import columns_of
from goodput.columns import snapshot
from goodput.columns.engine import ColumnEngine
from goodput.columns.fold import fold_columns
from goodput.columns.snapshot import SnapshotError, decode, encode, ends


def folded(steps: int = 40) -> tuple[ColumnEngine, StepLengths]:
    """Two ranks in one group, the second slower; the last step waits to be compared."""
    ranks = [Process(rank, world_size=2, group="g") for rank in range(2)]
    for one in ranks:
        one.between(none=1)
        for _ in range(steps):
            one.step(forward=0.5 + one.rank / 8, communication=0.25, samples=8)
    run = run_of(*ranks)
    engine = ColumnEngine(run, gather(run, max(one.now_ns for one in ranks), ns(60)))
    fold_columns(engine, {key: columns_of(attempt.ordered_rows()) for key, attempt in run.attempts.items()})
    lengths = StepLengths.for_threshold(0.01)
    for attempt in run.attempts.values():
        lengths.add_rows(attempt.ordered_rows())
    engine.groups.onsets[0, 1] = Onset([Stretch(1, None)], True, 0.5, 3, 0.25, 4, 0)
    return engine, lengths


def test_every_attribute_is_stored_or_derived():
    """A new attribute of a fold, of groups or of step lengths must be added to columns.snapshot."""
    engine, lengths = folded()
    fold = Fold(engine.run.attempts[0, 1], *engine.facts.criteria((0, 1)))
    assert vars(fold).keys() == snapshot.FOLD.keys() | snapshot.FOLD_DERIVED
    assert vars(engine.groups).keys() | {"_passed"} == snapshot.GROUPS.keys() | snapshot.GROUPS_DERIVED
    assert vars(lengths).keys() == snapshot.LENGTHS.keys()
    assert vars(engine).keys() == {"run", "facts", "planned", "folds", "groups"}
    assert set(PeakThroughput.__slots__) == {"best", "last_ns", "last_samples", "ns", "samples", "steps"}


def test_state_is_the_same_after_decoding():
    engine, lengths = folded()
    state = decode(encode(engine, lengths))
    again = state.engine(engine.run)
    assert vars(state.lengths()) == vars(lengths) and again.planned == engine.planned
    for key, fold in engine.folds.items():
        found = again.folds[key]
        for name in snapshot.FOLD:
            mine, other = getattr(fold, name), getattr(found, name)
            if name == "throughput":
                mine, other = ([getattr(one, slot) for slot in one.__slots__] for one in (mine, other))
            assert mine == other or (list(mine) == list(other)), name
        assert found.attempt is fold.attempt and found.planned is again.planned
    for name in snapshot.GROUPS.keys() - {"_columns"}:
        assert getattr(again.groups, name) == getattr(engine.groups, name), name
    for mine, other in zip(engine.groups._columns, again.groups._columns, strict=True):
        assert (mine[0] == other[0]).all()
        assert all((one == two).all() for one, two in zip(mine[1], other[1], strict=True))


def test_ends_are_those_of_the_folds():
    engine, lengths = folded()
    body = encode(engine, lengths)
    want = {key: fold.last_end_ns for key, fold in decode(body).folds.items() if fold.steps}
    assert ends(body) == want and len(set(want.values())) > 1
    with pytest.raises(SnapshotError):
        ends(body[:-1])


def test_waiting_steps_are_in_the_state():
    engine, lengths = folded()
    assert engine.groups._columns, "steps that wait to be compared"
    again = decode(encode(engine, lengths)).engine(engine.run)
    again.facts = engine.facts
    assert again.finish() == engine.finish()


def test_damaged_and_foreign_bytes_are_refused(monkeypatch):
    body, rng = encode(*folded()), random.Random(1)
    for _ in range(50):
        at = rng.randrange(len(body))
        with pytest.raises(SnapshotError):
            decode(body[:at] + bytes([body[at] ^ 1 << rng.randrange(8)]) + body[at + 1 :])
        with pytest.raises(SnapshotError):
            decode(body[:at])
    monkeypatch.setattr(snapshot, "_LAYOUT", b"another!")
    with pytest.raises(SnapshotError, match="another version"):
        decode(body)


def test_state_that_does_not_fit_is_not_stored():
    engine, lengths = folded()
    engine.folds[0, 1].samples = 1 << 70
    with pytest.raises(SnapshotError):
        encode(engine, lengths)


def test_state_of_unknown_attempts_is_refused():
    engine, lengths = folded()
    state = decode(encode(engine, lengths))
    with pytest.raises(SnapshotError, match="attempts"):
        state.engine(run_of(Process(0)))
