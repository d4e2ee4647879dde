"""Reasons of loader waits: sums over ranks, the number of workers that would keep up, the advice."""

from __future__ import annotations

import pytest
from support.account.account_history import Process, account_of, ns, of_rank

from goodput.account import Run, compute, document
from goodput.account.loader_summary import summarize_loaders
from goodput.account.text import render
from goodput.causes import explain
from goodput.defaults import ESTIMATED_LOADER, ESTIMATED_OPTIMIZER

BASE = {"batches": 100, "starts": 1, "workers": 4, "prefetch": 2, "cpus": 16, "main": 1, "worker_seen": 4}
FALLBACK = "more workers (num_workers, persistent_workers, prefetch_factor)"


def measured(**waits) -> dict[str, int]:
    """Figures of a rank that waited these seconds by reason, for workers that were busy 36 of 40 seconds."""
    given = {f"wait_{reason}_ns": ns(seconds) for reason, seconds in waits.items() if seconds}
    busy = {"worker_dataset_ns": ns(30), "worker_collate_ns": ns(6), "worker_idle_ns": ns(4)}
    return {**BASE, **busy, **given, "wait_ns": sum(given.values())}


def advice(*ranks: dict[str, int], waits=(5,), **given) -> str:
    run = Run("r")
    for rank, figures in enumerate(ranks):
        process = Process(rank, world_size=len(ranks), **given).steps(
            4, loader=waits[rank % len(waits)], forward=1
        )
        attempt = process.attempt()
        attempt.loader = figures
        run.attempts[rank, 1] = attempt
    causes = explain(compute(run, max(a.seen_ns for a in run.attempts.values())))
    return next(cause["advice"] for cause in causes if cause["state"] == "loader")


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        # Workers were there for 10 s each and the steps waited 6 of them: 36 s of work in 4 s is 9 workers.
        (
            measured(storage=4, decode=2),
            "67 % of the wait is workers blocked on storage or network: put the data on faster",
        ),
        (measured(storage=4, decode=2), "(num_workers=4, 90 % busy; about 9 would keep up)"),
        (measured(decode=6), "100 % of the wait is decoding and transforms on the workers' CPUs"),
        (
            {**measured(decode=6), "cpus": 8},
            "about 9 would keep up, but there are 8 cores for each rank on n0)",
        ),
        (measured(collate=3, decode=2), "60 % of the wait is collate_fn, which puts samples together"),
        (
            measured(cpus=3, decode=2),
            "workers that had no free core (num_workers=4, 16 cores for each rank on n0)",
        ),
        (
            {**measured(queue=3), "ready": 250},
            "bringing finished batches to the training process (2.5 batches were ready",
        ),
        (measured(queue=3), "a larger prefetch_factor than 2"),
        (
            {**measured(queue=3), "worst_worker": 2, "worst_waited_ns": ns(2)},
            "worker 2 causes most of it: check the samples",
        ),
        (
            {**measured(decode=1), "start_ns": ns(3)},
            "75 % of the wait is starting workers (1 time on the rank that waited",
        ),
        (
            {**measured(startup=3), "starts": 9},
            "starting workers (9 times on the rank that waited most): persistent_workers",
        ),
        ({**measured(startup=3), "persistent": 1}, "one loader for the whole run"),
        (
            {**measured(decode=3), "workers": 0, "worker_seen": 0},
            "training process itself (num_workers=0, 16 cores for each",
        ),
        ({**measured(storage=3), "workers": 0}, "reading in the training process itself (num_workers=0)"),
    ],
)
def test_advice_names_the_reason(figures, words):
    text = advice(figures)
    assert words in text and text.startswith("The rank waits for its loader: ") and text.endswith(".")


def test_unmeasured_loader_has_general_advice():
    assert FALLBACK in advice({})
    # Less than half of the waits has a known reason.
    assert FALLBACK in advice({**measured(storage=2), "wait_ns": ns(5)})
    assert "storage" in advice({**measured(storage=3), "wait_ns": ns(5)})


def test_rank_that_waits_alone_is_named():
    text = advice(measured(decode=1), measured(storage=3), waits=(5, 5))
    assert text.startswith("All ranks wait for their loaders: 75 % of the wait is workers blocked on storage")
    assert advice(measured(), measured(storage=3), {}, waits=(0.1, 5, 0.1)).startswith("Rank 1")
    assert "check that node's disk" in advice({}, {}, {}, waits=(0.1, 5, 0.1))


def test_ranks_of_a_host_share_its_cores():
    assert "8 cores for each rank" in advice(measured(cpus=3), measured(cpus=2), host="h")


def test_unknown_number_of_workers_is_none():
    found = summarize_loaders([type("A", (), {"loader": measured(decode=60), "rank": 0, "host": ""})])
    assert (
        found.enough_workers() is None
        and summarize_loaders([]).leading() is None
        and summarize_loaders([]).cores() is None
    )
    assert found.busy() == 0.9


def test_time_taken_for_batches_is_marked_estimated():
    """Without a known loader; the same from a page's totals and from a run log, also with two ranks."""
    user = {ESTIMATED_LOADER: "loader"}
    process = Process(user=user).steps(4, **{ESTIMATED_LOADER: 1}, forward=3)
    account = account_of(process)
    found = document(account, explain(account))
    assert found["basis"]["loader"] == "estimated" and of_rank(account)["loader"] == 4
    advised = {cause["state"]: cause["advice"] for cause in found["causes"]}
    assert advised["loader"].startswith("The rank waits for its batches. No loader is known")
    assert "waiting for the data loader (an estimate)" in " ".join(render(found, full=True).split())
    # Declared and never used: a loader was known.
    account = account_of(Process(user=user).steps(4, loader=1, forward=3))
    assert document(account, [])["basis"]["loader"] == "measured"


def test_updates_by_hand_are_marked_estimated():
    """In `productive`, where there is no optimizer."""
    user = {ESTIMATED_OPTIMIZER: "productive"}
    account = account_of(Process(user=user).steps(4, **{ESTIMATED_OPTIMIZER: 1}, forward=3).finished())
    assert (
        document(account, [])["basis"]["productive"] == "estimated" and of_rank(account)["productive"] == 16
    )
    text = " ".join(render(document(account, explain(account)), full=True).split())
    assert "compute phases of kept steps (an estimate)" in text
    account = account_of(Process(user=user).steps(4, optimizer=1, forward=3))
    assert document(account, [])["basis"]["productive"] == "measured"
