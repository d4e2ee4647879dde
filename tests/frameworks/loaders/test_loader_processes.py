"""Workers of every start method, over epochs, of several loaders; what stays outside of the account."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch==2.13.0")
import support.frameworks.loader_datasets as data  # noqa: E402
from support.core_wait import CoreWait  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

from goodput.sdk.automatic import loader_stats  # noqa: E402
from goodput.sdk.automatic.frameworks.torch import workers as patch  # noqa: E402
from goodput.sdk.automatic.loader_worker import MeasuredLoop  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.alone]


@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
def test_every_start_method(trainer, context):
    dataset = data.Planted(16, sleep=0.01)
    loader = DataLoader(dataset, batch_size=4, num_workers=2, multiprocessing_context=context)
    waited = CoreWait()
    batches = trainer.train(loader)
    waited_ns = 1e9 * waited.seconds()
    assert torch.equal(torch.cat(batches)[:, 0], torch.arange(16.0))
    workers, found = trainer.snapshot().workers, trainer.snapshot().loader
    slots = [(w["loader"], w["worker"], w["batches"], w["starts"]) for w in workers]
    assert slots == [(1, 0, 2, 1), (1, 1, 2, 1)]
    planted, delay = int(dataset.planted[data.ALL].sum()), sum(w["delay_ns"] for w in workers)
    assert planted <= sum(w["dataset_ns"] for w in workers) <= planted * 1.05 + delay
    if context != "fork":
        # Workers start while this process has no core, too.
        assert found["wait_startup_ns"] + waited_ns > found["wait_storage_ns"]
    # A reason is named that explains half of the waiting.
    if context != "fork" and found["wait_startup_ns"] > max(found["wait_ns"] / 2, found["wait_storage_ns"]):
        advice = trainer.advice()
        assert "starting workers (1 time" in advice and "persistent_workers=True" in advice
    # The owner's lock is seen by other processes only.
    code = "import sys, goodput.rank_page.page as page; sys.exit(not page.is_locked(sys.argv[1]))"
    command = [sys.executable, "-c", code, trainer.session.writer.path]
    assert subprocess.run(command, timeout=300).returncode == 0
    assert len(os.listdir(os.path.dirname(trainer.session.writer.path))) == 1


@pytest.mark.parametrize("persistent", [True, False])
def test_worker_slots_continue_over_epochs(trainer, persistent):
    loader = DataLoader(data.Planted(8), batch_size=2, num_workers=2, persistent_workers=persistent)
    starts = 1 if persistent else 3
    for epoch in range(1, 4):
        trainer.train(loader)
        workers = trainer.snapshot().workers
        assert [w["batches"] for w in workers] == [2 * epoch, 2 * epoch]
        assert [w["starts"] for w in workers] == [1 if persistent else epoch] * 2
    found = trainer.snapshot().loader
    assert (found["starts"], found["batches"], found["persistent"]) == (starts, 12, persistent)


def test_simultaneous_loaders_have_their_own_slots(trainer):
    # Slow enough that its waits exceed the start of a worker on a busy machine.
    train = DataLoader(data.Planted(8, sleep=0.4), batch_size=2, num_workers=2, persistent_workers=True)
    other = DataLoader(data.Planted(4), batch_size=1, num_workers=1)
    with trainer.auto.loader:
        first = iter(train)
        next(first)
        rest = list(other)
        batches = list(first)
    assert len(rest) == 4 and len(batches) == 3
    workers, found = trainer.snapshot().workers, trainer.snapshot().loader
    assert [(w["loader"], w["worker"], w["batches"]) for w in workers] == [(1, 0, 2), (1, 1, 2), (2, 0, 4)]
    assert (found["main"], found["workers"], found["batch_size"], found["left_out"]) == (1, 2, 2, 0)


def test_loaders_of_threads_and_evaluations_are_ignored(trainer):
    thread = threading.Thread(target=list, args=(DataLoader(data.Planted(4), batch_size=2),))
    thread.start()
    thread.join(60)
    assert trainer.snapshot().loader == {}
    with torch.no_grad():
        assert len(list(DataLoader(data.Planted(4), batch_size=2))) == 2
    found = trainer.snapshot().loader
    assert found["starts"] == 1 and found["batches"] == found["wait_ns"] == 0


class Instant:
    """An iterator with workers whose batches are always ready, with the attributes that the patch reads."""

    def __init__(self, loader, results=None):
        self._rcvd_idx, self._tasks_outstanding = 0, 2
        self._task_info = {index: (index % 2,) for index in range(20_000)}
        self._data_queue = self._worker_result_queue = results

    def _next_data(self):
        self._rcvd_idx += 1


def read_clock_75_times(_iterator) -> None:
    for _ in range(75):
        time.perf_counter_ns()


def test_cost_per_batch_on_the_step_thread(trainer):
    """Measuring a batch costs about 2 us, less than a control of about 6 us in the same run."""
    plain, loads = (
        Instant._next_data,
        loader_stats.LoaderStats(trainer.session.recorder, trainer.auto.training.fetches),
    )
    loop, loader = MeasuredLoop(), DataLoader(data.Planted(4), num_workers=2)
    results = torch.multiprocessing.get_context("fork").Queue()
    patch._watch_creation(Instant, trainer.auto, loads, loop)
    patch._with_workers(Instant, trainer.auto, loads)

    def cpu_ns(iterator, advance) -> int:
        began = time.thread_time_ns()
        for _ in range(500):
            advance(iterator)
        return time.thread_time_ns() - began

    with trainer.auto.loader:
        iterator = Instant(loader, results)
        trainer.auto.loaders.change(iterator)
        bare = min(cpu_ns(iterator, plain) for _ in range(10))
        control = min(cpu_ns(iterator, read_clock_75_times) for _ in range(20))
        timed = min(cpu_ns(iterator, Instant._next_data) for _ in range(20))
    assert trainer.snapshot().loader["batches"] == 10_000
    assert timed - bare < control, f"{(timed - bare) / control:.2f} of the control"
