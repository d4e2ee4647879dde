"""Planted trouble inside a real DataLoader is found and named."""

from __future__ import annotations

import json
import time

import pytest
from support.frameworks.script_process import run_script
from support.mentions import mentions_goodput

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch==2.13.0")
import support.frameworks.loader_datasets as data  # noqa: E402
from support.core_wait import CoreWait  # noqa: E402
from support.frameworks.loader_trainer import near  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.alone]


def test_sleeping_dataset_is_storage(trainer):
    dataset, waited = data.Planted(32, sleep=0.02), CoreWait()
    trainer.train(DataLoader(dataset, batch_size=4, num_workers=1))
    waited_ns = 1e9 * waited.seconds()
    worker, loader, planted = trainer.sums(), trainer.snapshot().loader, int(dataset.planted[data.ALL].sum())
    assert worker["batches"] == loader["batches"] == 8
    # How long what comes between two samples had no core is unknown.
    assert planted <= worker["dataset_ns"] <= planted * 1.05 + worker["delay_ns"]
    # Waking up late because no core was free is no storage.
    blocked = worker["dataset_ns"] - worker["cpu_ns"] - worker["delay_ns"]
    assert near(blocked, 32 * 20_000_000)
    assert near(loader["wait_storage_ns"], blocked, 10)
    waited_ns += worker["delay_ns"]
    assert loader["wait_storage_ns"] > 0.8 * (loader["wait_ns"] - loader["wait_startup_ns"]) - waited_ns
    assert "blocked on storage or network" in trainer.advice()


@pytest.mark.parametrize(
    "kind", [data.Planted, data.Batched, lambda *a, **k: data.Streamed(data.Planted(*a, **k))]
)
def test_computing_dataset_is_decoding(trainer, kind):
    dataset = kind(32, cpu=0.03)  # So much that what surrounds it is little.
    trainer.train(DataLoader(dataset, batch_size=4, num_workers=1))
    planted = int(getattr(dataset, "inner", dataset).planted[data.DECODED].sum())
    worker, loader = trainer.sums(), trainer.snapshot().loader
    assert worker["batches"] == 8
    assert near(worker["cpu_ns"], planted)
    assert loader["wait_decode_ns"] > 3 * loader["wait_storage_ns"]
    if worker["delay_ns"] < planted / 2:
        assert "decoding and transforms on the workers' CPUs" in trainer.advice()


def test_slow_collate_function_is_named(trainer):
    """It sleeps: one that computes also holds back the thread of its worker that sends batches."""
    dataset, collate = data.Planted(32), data.SlowCollate(sleep=0.03)
    trainer.train(DataLoader(dataset, batch_size=4, num_workers=1, collate_fn=collate))
    worker, loader = trainer.sums(), trainer.snapshot().loader
    assert worker["dataset_ns"] - worker["delay_ns"] < 0.2 * worker["collate_ns"]
    assert near(worker["collate_ns"], int(collate.planted[data.COLLATED].sum()))
    assert loader["wait_collate_ns"] > 0.5 * (loader["wait_ns"] - loader["wait_startup_ns"]), (loader, worker)
    assert "collate_fn, which puts samples together" in trainer.advice()


def test_big_batches_wait_in_the_queue(trainer):
    """64 MiB a batch, of pickled bytes: made at once, and long under way."""
    trainer.train(DataLoader([b"x" * (1 << 25)] * 16, batch_size=2, num_workers=1, collate_fn=list))
    found = trainer.snapshot().loader
    assert found["wait_queue_ns"] > 0.6 * (found["wait_ns"] - found["wait_startup_ns"])
    assert "training process" in trainer.advice() and "num_workers=0" not in trainer.advice()


def test_fast_loader_has_batches_ready(trainer):
    """Batches lie ready while the step computes, and the waits are a small part."""
    trainer.train(DataLoader(data.Planted(64, sleep=0.002), batch_size=4, num_workers=2), compute=0.03)
    found = trainer.snapshot().loader
    assert found["batches"] == 16 and found["ready"] > 16 and found["starved"] <= 3
    assert trainer.sums()["idle_ns"] > 0.3 * 16 * 0.03 * 1e9


def test_rare_slow_sample_has_its_own_reason(trainer):
    """Workers compute most of their time, but the trainer waits for the batches that sleep."""

    class Mixed(data.Planted):
        def __getitem__(self, index):
            if index % 8 == 7:
                time.sleep(0.2)
            else:
                data.burn(0.02)
            return torch.zeros(1)

    trainer.train(DataLoader(Mixed(32), batch_size=1, num_workers=1, prefetch_factor=4), compute=0.022)
    found = trainer.snapshot().loader
    assert found["wait_storage_ns"] > 2 * found["wait_decode_ns"]
    assert trainer.sums()["cpu_ns"] > 0.4 * 1e9


def test_loader_without_workers_is_timed_in_the_step_thread(trainer):
    dataset, collate = data.Planted(16, sleep=0.01, cpu=0.02), data.SlowCollate(cpu=0.03)
    trainer.train(DataLoader(dataset, batch_size=4, collate_fn=collate))
    found = trainer.snapshot().loader
    assert (found["batches"], found["inside"], found["workers"], trainer.snapshot().workers) == (4, 4, 0, ())
    assert near(found["wait_decode_ns"], int(dataset.planted[data.DECODED].sum()))
    assert near(found["wait_collate_ns"], int(collate.planted[data.COLLATED].sum()))
    # Without a look at the run queue, having no core counts as being blocked.
    # Between two samples nobody counts: room for one time slice of another process.
    planted = int(dataset.planted[data.ALL].sum())
    assert planted <= found["wait_storage_ns"] + found["wait_decode_ns"] <= planted * 1.05 + 20_000_000
    assert "training process itself (num_workers=0" in trainer.advice()


def test_loader_inside_a_dataset_counts_once(trainer):
    trainer.train(DataLoader(data.Nested(4, cpu=0.1), batch_size=2))
    found = trainer.snapshot().loader
    assert found["batches"] == 2 and near(found["wait_decode_ns"], 4 * 100_000_000, 20)
    trainer.train(DataLoader(data.Nested(4, cpu=0.1), batch_size=2, num_workers=1))
    assert trainer.snapshot().loader["batches"] == 4 and near(trainer.sums()["cpu_ns"], 4 * 100_000_000, 20)


def test_iterator_advanced_by_a_dataset_is_part_of_the_fetch(trainer):
    inner = iter(DataLoader(data.Planted(8, cpu=0.05)))

    class Pulled(data.Planted):
        def __getitem__(self, index):
            return next(inner)

    assert len(trainer.train(DataLoader(Pulled(4), batch_size=2))) == 2
    found = trainer.snapshot().loader
    assert found["batches"] == 2 and near(found["wait_decode_ns"], 4 * 50_000_000, 20)


def test_whole_script_with_one_import(directory):
    done = run_script("loaders/loader_one_line.py", GOODPUT_DIR=directory)
    found = json.loads(done.stdout)
    # The workers are no ranks, though they import the script and iterate a loader of their own.
    assert found["pages"] == 1 and found["steps"] >= 18
    assert "workers" in found["advice"] and "% of the wait is" in found["advice"]
    assert "worker" in found["error"] and ("Killed" in found["error"] or "unexpectedly" in found["error"])
    assert found["drops"] == 0 and found["messages"] == []
    assert not mentions_goodput(done.stderr)
