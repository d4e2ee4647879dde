"""Rows of the ledger that a restarted aggregator takes back, also those that no push would bring."""

from __future__ import annotations

import numpy as np
import pytest
from support.account.account_history import Process
from support.aggregator.reports import rank_report

from goodput.aggregator.accounts.live import IncrementalAccount
from goodput.aggregator.ingest.pushed_steps import decode_steps, in_version_2
from goodput.aggregator.ingest.store import Store
from goodput.wire import compiled
from goodput.wire.packed_rows import PackedRows
from goodput.wire.step_blocks import SAMPLES
from goodput.wire.step_columns import widened


@pytest.fixture(params=["compiled", "in Python"], autouse=True)
def _decoding(request, monkeypatch):
    if request.param == "in Python":
        monkeypatch.setattr(compiled, "steps", None)
    elif compiled.steps is None:
        pytest.skip("no compiler was there")


def restored(change) -> tuple[Store, IncrementalAccount]:
    """Two ranks with 20 steps each, whose rows are `change(values)`."""
    store = Store()
    for rank in range(2):
        process = Process(rank, 1, 1000.0, world_size=2).steps(20, forward=0.5, loader=0.25)
        store.merge(rank_report(process, rows=[]), 0)
        (steps,) = decode_steps([in_version_2(rank_report(process))])
        store.restore_steps(rank_report(process).identity, change(steps.values.copy()))
    return store, IncrementalAccount(store.runs["r1"], stall_seconds=60.0, stale_seconds=60.0)


def account_of(change):
    store, live = restored(change)
    return live.account(max(one.seen_ns for one in store.runs["r1"].attempts.values()))


def test_they_are_kept_as_blocks():
    store, _ = restored(lambda values: values)
    parts = [part for one in store.runs["r1"].attempts.values() for part in one.parts]
    assert len(parts) == 2
    assert all(isinstance(part, PackedRows) for part in parts)


def test_phases_that_the_report_does_not_name_are_left_out():
    """A report that came late may have had more phases than the newest, which the ledger has."""

    def with_more(values: np.ndarray) -> np.ndarray:
        more = widened(values, (len(values) - 8) // 2 + 1).copy()
        more[-2] = np.arange(values.shape[1])
        return more

    assert account_of(with_more) == account_of(lambda values: values)


def test_damaged_rows_keep_no_account_from_being_computed():
    def damaged(values: np.ndarray) -> np.ndarray:
        values[SAMPLES, 0] = -(1 << 40)
        return values

    found, right = account_of(damaged), account_of(lambda values: values)
    assert [rank.states for rank in found.ranks] == [rank.states for rank in right.ranks]
