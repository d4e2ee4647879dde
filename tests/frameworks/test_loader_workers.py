"""Inside a real DataLoader: planted trouble is found and named, and what the loader yields stays the same."""

from __future__ import annotations

import gc
import inspect
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time

import pytest
from support.paths import SUPPORT

from goodput.rank_page import page
from goodput.rank_page.reader import Reader
from goodput.sdk.automatic.loader_stats import Loads
from goodput.sdk.automatic.loader_worker import Loop
from goodput.sdk.automatic.step_detection import Automatic
from goodput.sdk.recorder.steps import steps
from goodput.sdk.reports.report import report
from goodput.sdk.startup.session import Session

numpy = pytest.importorskip("numpy")
torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch==2.13.0")
import support.frameworks.loader_datasets as data  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402
from torch.utils.data import dataloader as upstream  # noqa: E402
from torch.utils.data._utils import fetch as upstream_fetch  # noqa: E402
from torch.utils.data._utils import worker as upstream_worker  # noqa: E402

from goodput.sdk.automatic import loader_stats  # noqa: E402
from goodput.sdk.automatic.frameworks.torch import loader as loader_patch  # noqa: E402
from goodput.sdk.automatic.frameworks.torch import workers as patch  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.alone]
PATCHED = (
    (upstream_worker, "_worker_loop"),
    (upstream._MultiProcessingDataLoaderIter, "__init__"),
    (upstream._MultiProcessingDataLoaderIter, "_next_data"),
    (upstream._SingleProcessDataLoaderIter, "__init__"),
    (upstream.DataLoader, "__iter__"),
    (upstream._BaseDataLoaderIter, "__next__"),
    (upstream_fetch._BaseDatasetFetcher, "collate_fn"),
)
UNPATCHED = [vars(owner).get(name) for owner, name in PATCHED]


FORKING: list[Session] = []
os.register_at_fork(after_in_child=lambda: [session.after_fork() for session in FORKING])


class Trainer:
    """A session with the patches of loaders alone; steps are bounded by hand."""

    def __init__(self, directory):
        self.session = Session({"GOODPUT_DIR": str(directory)})
        self.session.start(run="r", rank=0, world_size=1)
        FORKING[:] = [self.session]
        self.auto = Automatic(self.session, lambda name: self.session.phases.define(name, None))
        loader_patch.apply(torch, self.auto)
        patch.apply(torch.utils.data, self.auto)
        self.auto.by_hand()

    def train(self, loader, compute=0.0) -> list:
        batches = []
        for batch in steps(self.session.recorder, self.auto.loader, loader, 0):
            batches.append(batch)
            if compute:
                with self.auto.forward:
                    time.sleep(compute)
        return batches

    def snapshot(self):
        return Reader(self.session.writer.path, self.session.writer.fd).snapshot()

    def advice(self) -> str:
        causes = report(self.session).account["causes"]
        return next(cause["advice"] for cause in causes if cause["state"] == "loader")

    def sums(self) -> dict[str, int]:
        """Of all workers together."""
        workers = self.snapshot().workers
        return {name: sum(worker[name] for worker in workers) for name in workers[0]}


@pytest.fixture
def directory():
    with tempfile.TemporaryDirectory(dir=os.path.dirname(page.default_directory({}))) as made:
        yield made


@pytest.fixture
def trainer(directory):
    made = Trainer(directory)
    yield made
    made.auto.patches.restore()
    made.session.stop("finished")
    gc.collect()  # An iterator in a traceback would be shut down in a later test's worker, which takes 5 s.
    assert [vars(owner).get(name) for owner, name in PATCHED] == UNPATCHED
    assert made.session.said == set()


def near(found: int, planted: int, percent: float = 5) -> bool:
    return abs(found - planted) <= planted * percent / 100


# ---- What was planted is found


def test_sleeping_in_the_dataset_is_storage(trainer):
    dataset = data.Planted(32, sleep=0.02)
    trainer.train(DataLoader(dataset, batch_size=4, num_workers=1))
    worker, loader, planted = trainer.sums(), trainer.snapshot().loader, int(dataset.planted[data.ALL].sum())
    assert worker["batches"] == loader["batches"] == 8
    # Nobody has said how long there was no core for what comes between two samples.
    assert planted <= worker["dataset_ns"] <= planted * 1.05 + worker["delay_ns"]
    # Waking up late because no core was free is no storage.
    blocked = worker["dataset_ns"] - worker["cpu_ns"] - worker["delay_ns"]
    assert near(blocked, 32 * 20_000_000)
    assert near(loader["wait_storage_ns"], blocked, 10)
    assert loader["wait_storage_ns"] > 0.8 * (loader["wait_ns"] - loader["wait_startup_ns"])
    assert "blocked on storage or network" in trainer.advice()


@pytest.mark.parametrize(
    "kind", [data.Planted, data.Batched, lambda *a, **k: data.Streamed(data.Planted(*a, **k))]
)
def test_computing_in_the_dataset_is_decoding(trainer, kind):
    dataset = kind(32, cpu=0.03)  # So much that what surrounds it is little.
    trainer.train(DataLoader(dataset, batch_size=4, num_workers=1))
    planted = int(getattr(dataset, "inner", dataset).planted[data.DECODED].sum())
    worker, loader = trainer.sums(), trainer.snapshot().loader
    assert worker["batches"] == 8
    assert near(worker["cpu_ns"], planted)
    assert loader["wait_decode_ns"] > 3 * loader["wait_storage_ns"]
    if worker["delay_ns"] < planted / 2:
        assert "decoding and transforms on the workers' CPUs" in trainer.advice()


def test_a_slow_collate_function_is_named(trainer):
    """It sleeps: one that computes also holds back the thread of its worker that sends batches."""
    dataset, collate = data.Planted(32), data.SlowCollate(sleep=0.03)
    trainer.train(DataLoader(dataset, batch_size=4, num_workers=1, collate_fn=collate))
    worker, loader = trainer.sums(), trainer.snapshot().loader
    assert worker["dataset_ns"] < 0.2 * worker["collate_ns"]
    assert near(worker["collate_ns"], int(collate.planted[data.COLLATED].sum()))
    assert loader["wait_collate_ns"] > 0.5 * (loader["wait_ns"] - loader["wait_startup_ns"]), (loader, worker)
    assert "collate_fn, which puts samples together" in trainer.advice()


def test_big_batches_wait_in_the_queue(trainer):
    """64 MiB a batch, of pickled bytes: made at once, and long under way."""
    trainer.train(DataLoader([b"x" * (1 << 25)] * 16, batch_size=2, num_workers=1, collate_fn=list))
    found = trainer.snapshot().loader
    assert found["wait_queue_ns"] > 0.6 * (found["wait_ns"] - found["wait_startup_ns"])
    assert "training process" in trainer.advice() and "num_workers=0" not in trainer.advice()


def test_a_loader_that_keeps_up_is_no_wait(trainer):
    """Batches lie ready while the step computes, and the waits are a small part."""
    trainer.train(DataLoader(data.Planted(64, sleep=0.002), batch_size=4, num_workers=2), compute=0.03)
    found = trainer.snapshot().loader
    assert found["batches"] == 16 and found["ready"] > 16 and found["starved"] <= 3
    assert trainer.sums()["idle_ns"] > 0.3 * 16 * 0.03 * 1e9


def test_one_slow_sample_in_ten_is_charged_to_its_own_reason(trainer):
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


def test_without_workers_it_is_timed_in_the_step_thread(trainer):
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


def test_loaders_without_workers_inside_a_dataset_count_once(trainer):
    trainer.train(DataLoader(data.Nested(4, cpu=0.1), batch_size=2))
    found = trainer.snapshot().loader
    assert found["batches"] == 2 and near(found["wait_decode_ns"], 4 * 100_000_000, 20)
    trainer.train(DataLoader(data.Nested(4, cpu=0.1), batch_size=2, num_workers=1))
    assert trainer.snapshot().loader["batches"] == 4 and near(trainer.sums()["cpu_ns"], 4 * 100_000_000, 20)


def test_an_iterator_that_a_dataset_advances_is_part_of_the_fetch(trainer):
    inner = iter(DataLoader(data.Planted(8, cpu=0.05)))

    class Pulled(data.Planted):
        def __getitem__(self, index):
            return next(inner)

    assert len(trainer.train(DataLoader(Pulled(4), batch_size=2))) == 2
    found = trainer.snapshot().loader
    assert found["batches"] == 2 and near(found["wait_decode_ns"], 4 * 50_000_000, 20)


# ---- Processes


@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
def test_every_way_to_start_a_worker(trainer, context):
    dataset = data.Planted(16, sleep=0.01)
    loader = DataLoader(dataset, batch_size=4, num_workers=2, multiprocessing_context=context)
    batches = trainer.train(loader)
    assert torch.equal(torch.cat(batches)[:, 0], torch.arange(16.0))
    workers, found = trainer.snapshot().workers, trainer.snapshot().loader
    assert [(w["loader"], w["worker"], w["batches"], w["starts"]) for w in workers] == [
        (1, 0, 2, 1),
        (1, 1, 2, 1),
    ]
    planted, delay = int(dataset.planted[data.ALL].sum()), sum(w["delay_ns"] for w in workers)
    assert planted <= sum(w["dataset_ns"] for w in workers) <= planted * 1.05 + delay
    if context != "fork":
        assert found["wait_startup_ns"] > found["wait_storage_ns"]
        assert (
            "starting workers (1 time" in trainer.advice() and "persistent_workers=True" in trainer.advice()
        )
    # The owner's lock is seen by other processes only.
    code = "import sys, goodput.rank_page.page as page; sys.exit(not page.is_locked(sys.argv[1]))"
    assert (
        subprocess.run([sys.executable, "-c", code, trainer.session.writer.path], timeout=30).returncode == 0
    )
    assert len(os.listdir(os.path.dirname(trainer.session.writer.path))) == 1


@pytest.mark.parametrize("persistent", [True, False])
def test_slots_go_on_over_epochs(trainer, persistent):
    loader = DataLoader(data.Planted(8), batch_size=2, num_workers=2, persistent_workers=persistent)
    for epoch in range(1, 4):
        trainer.train(loader)
        workers = trainer.snapshot().workers
        assert [w["batches"] for w in workers] == [2 * epoch, 2 * epoch]
        assert [w["starts"] for w in workers] == [1 if persistent else epoch] * 2
    found = trainer.snapshot().loader
    assert (found["starts"], found["batches"], found["persistent"]) == (
        1 if persistent else 3,
        12,
        persistent,
    )


def test_two_loaders_at_once_have_slots_of_their_own(trainer):
    train = DataLoader(data.Planted(8, sleep=0.02), batch_size=2, num_workers=2, persistent_workers=True)
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


def test_a_loader_of_another_thread_or_of_an_evaluation_is_not_waited_for(trainer):
    thread = threading.Thread(target=list, args=(DataLoader(data.Planted(4), batch_size=2),))
    thread.start()
    thread.join(60)
    assert trainer.snapshot().loader == {}
    with torch.no_grad():
        assert len(list(DataLoader(data.Planted(4), batch_size=2))) == 2
    found = trainer.snapshot().loader
    assert found["starts"] == 1 and found["batches"] == found["wait_ns"] == 0


def test_a_quick_loader_is_looked_at_now_and_then(trainer):
    """All batches are counted; the waits of those that were looked at stand for the others."""
    kind = upstream_fetch._MapDatasetFetcher
    before, loader = dict(vars(kind)), DataLoader(range(1000), batch_size=2)
    iterator = iter(loader)
    recorder, looks = trainer.session.recorder, 0
    recorder.iterator = trainer.auto.loaders.change(iterator) or trainer.auto.loaders._current
    for _ in range(500):
        looks += recorder.passes == 0
        with trainer.auto.loader:
            next(iterator)
        assert type(iterator._dataset_fetcher) is kind
    assert list(iterator) == [] and dict(vars(kind)) == before
    found = trainer.snapshot().loader
    assert found["batches"] == found["inside"] == 500
    assert 8 <= looks <= 40  # One in 61, or one in 17 where the machine is slow.
    assert 0 < found["wait_ns"] <= trainer.snapshot().totals[page.PHASES.index("loader")]
    reasons = sum(found[f"wait_{why}_ns"] for why in ("storage", "decode", "collate"))
    assert (
        0.5 * found["wait_ns"] < reasons <= found["wait_ns"]
    )  # Those of the last ones were not looked at any more.


def test_short_epochs_are_looked_at_by_turns(trainer, monkeypatch):
    """Whatever comes every so many batches, or is first in its epoch, is looked at no more often than the others."""
    monkeypatch.setattr(loader_stats, "VERY_QUICK_NS", 1 << 60)
    monkeypatch.setattr(loader_stats, "QUICK_NS", 1 << 60)
    loader, recorder, looked = DataLoader(range(12)), trainer.session.recorder, []
    for _ in range(61):
        iterator = iter(loader)
        recorder.iterator = trainer.auto.loaders.change(iterator) or trainer.auto.loaders._current
        for at in range(12):
            looked += [at] * (recorder.passes == 0)
            with trainer.auto.loader:
                next(iterator)
    assert len(looked) == 12 and sorted(looked) == list(range(12))
    assert recorder.passes == 0 < recorder.passed_ns
    # Another loader's first batch is looked at.
    trainer.auto.loaders.change(iter(DataLoader(range(3))))
    assert recorder.looking and recorder.passes == recorder.passed_ns == 0


def test_a_batch_fetched_to_make_another_is_not_counted_for_it(trainer):
    other, found = iter(DataLoader(range(3))), loader_stats.Loads(trainer.session.recorder)
    recorder = trainer.session.recorder
    trainer.auto.loaders.change(other)
    recorder.iterator, recorder.passes = trainer.auto.loaders._current, 5
    found.passed(trainer, 7)
    assert (recorder.passes, recorder.passed_ns) == (5, 0)
    found.passed(other, 9)
    assert (recorder.passes, recorder.passed_ns) == (4, 9)
    # What was slow and not looked at has no reason, and the next one is looked at.
    found.passed(other, loader_stats.QUICK_NS)
    assert (recorder.passes, recorder.passed_ns) == (0, 9)
    words = trainer.snapshot().loader
    assert (words["batches"], words["wait_ns"]) == (3, 7 + 9 + loader_stats.QUICK_NS)


def test_a_training_loader_that_is_asked_twice_says_nothing_of_another(trainer):
    """The hook in C does not ask: where only the Python hook did, it hung on the moment what an evaluation was."""
    loaders, first, second = trainer.auto.loaders, DataLoader(range(4)), DataLoader(range(4))
    one, other = iter(first), iter(second)
    next(one)
    loaders.step_ended()
    next(other)
    assert [ref() for ref in loaders.asked] == [second]
    next(one), next(one)
    assert [ref() for ref in loaders.asked] == [second]
    next(other), next(other)  # Asked anew, and again: it is taken off once.
    assert [ref() for ref in loaders.asked] == [second]


class Odd:
    """A fetcher of the user's, that does not say what it is."""

    __class__ = property(lambda self: 1 / 0)

    def fetch(self, indices):
        return indices


def test_a_fetcher_of_the_users_is_asked_for_its_own_collate_fn(trainer):
    class Fixed(upstream_fetch._MapDatasetFetcher):
        collate_fn = property(lambda self: tuple, lambda self, value: None)

    class Static(upstream_fetch._MapDatasetFetcher):
        collate_fn = staticmethod(tuple)

    for kind in (type("Child", (Fixed,), {}), type("Child", (Static,), {})):
        iterator = iter(DataLoader(range(4), batch_size=2))
        iterator._dataset_fetcher.__class__ = kind
        iterator._dataset_fetcher.__dict__.pop("collate_fn")
        assert list(iterator) == [(0, 1), (2, 3)]
    iterator = iter(DataLoader(range(4), batch_size=2))
    del iterator._dataset_fetcher.collate_fn
    with pytest.raises(AttributeError, match="'_MapDatasetFetcher' object has no attribute 'collate_fn'"):
        next(iterator)
    iterator._dataset_fetcher = Odd()
    assert list(iterator) == [[2, 3]]
    assert trainer.snapshot().loader["batches"] == 5


def test_a_fetcher_that_cannot_be_watched_is_timed_as_a_whole(trainer):
    class Fixed(upstream_fetch._MapDatasetFetcher):
        collate_fn = property(lambda self: list, lambda self, value: None)

    iterator = iter(DataLoader(data.Planted(4, sleep=0.01), batch_size=2))
    iterator._dataset_fetcher.__class__ = Fixed
    assert len(list(iterator)) == 2
    assert type(iterator._dataset_fetcher) is Fixed
    found = trainer.snapshot().loader
    assert found["batches"] == 2 and found["wait_ns"] > 40_000_000 and found["wait_collate_ns"] == 0


# ---- Nothing changes


def drawn(**given) -> tuple:
    torch.manual_seed(3)
    random.seed(3)
    numpy.random.seed(3)
    generator = torch.Generator().manual_seed(5)
    loader = DataLoader(
        data.Drawn(), batch_size=3, shuffle=True, generator=generator, collate_fn=list, **given
    )
    epochs = [list(loader), list(loader)]
    states = torch.get_rng_state().tolist(), generator.get_state().tolist()
    return epochs, states, random.getstate(), float(numpy.random.rand())


VARIANTS = [
    {},
    {"num_workers": 2},
    {"num_workers": 2, "persistent_workers": True},
    {"num_workers": 2, "worker_init_fn": data.reseed, "prefetch_factor": 1},
    {"num_workers": 2, "in_order": False},
]


@pytest.mark.parametrize("given", VARIANTS[:4], ids=lambda given: "-".join(given) or "none")
def test_order_and_random_numbers_are_the_same(directory, given):
    bare = drawn(**given)
    trainer = Trainer(directory)
    with trainer.auto.loader:
        measured = drawn(**given)
    trainer.auto.patches.restore()
    assert trainer.snapshot().loader["batches"] == 16
    assert measured == bare


def test_a_loader_out_of_order_yields_all(trainer):
    with trainer.auto.loader:
        batches = drawn(**VARIANTS[4])[0]
    assert [sorted(s[0] for batch in epoch for s in batch) for epoch in batches] == [[*range(24)]] * 2
    assert trainer.snapshot().loader["batches"] == 16


def raised(make) -> str:
    iterator = iter(make())
    try:
        for _ in iterator:
            pass
    except (KeyError, TypeError) as error:
        text = f"{type(error).__name__}: {error}"
    if hasattr(iterator, "_shutdown_workers"):
        iterator._shutdown_workers()  # By the garbage collector it takes 5 s, since it is in a cycle.
    return text


@pytest.mark.parametrize(
    "make",
    [
        lambda: DataLoader(data.Broken(8), batch_size=2, num_workers=1),
        lambda: DataLoader(data.Planted(8), batch_size=2, num_workers=1, collate_fn=data.BrokenCollate()),
        lambda: DataLoader(data.Streamed(data.Broken(8)), batch_size=2, num_workers=1),
        lambda: DataLoader(data.Broken(8), batch_size=2),
    ],
    ids=["dataset", "collate", "stream", "inside"],
)
def test_errors_of_a_worker_are_the_same_to_the_last_line_of_their_traceback(directory, make):
    bare = raised(make)
    trainer = Trainer(directory)
    with trainer.auto.loader:
        measured = raised(make)
    trainer.auto.patches.restore()
    assert measured == bare and "goodput" not in measured


def test_restore_with_workers_alive(directory):
    trainer = Trainer(directory)
    with trainer.auto.loader:
        iterator = iter(DataLoader(data.Planted(8), batch_size=2, num_workers=1))
        next(iterator)
        trainer.auto.patches.restore()
        assert [vars(owner).get(name) for owner, name in PATCHED] == UNPATCHED
        assert len(list(iterator)) == 3
    assert trainer.snapshot().loader["batches"] == 1


def test_a_broken_page_or_iterator_does_not_reach_the_loop(trainer):
    """The place cannot be given, then what `ask` reads is gone: the batches come all the same."""
    fd, trainer.session.writer.fd = trainer.session.writer.fd, 10**6
    with trainer.auto.loader:
        assert len(list(DataLoader(data.Planted(8), batch_size=2, num_workers=1))) == 4
        trainer.session.writer.fd = fd
        iterator = iter(DataLoader(data.Planted(8), batch_size=2, num_workers=1))
        iterator._goodput_watched.entry = None
        assert len(list(iterator)) == 4
    assert len(trainer.session.said) == 1
    trainer.session.said.clear()


# ---- What it costs


class Instant:
    """An iterator with workers whose batches are always there, as far as `ask` and `arrived` look at it."""

    def __init__(self, loader, results=None):
        self._rcvd_idx, self._tasks_outstanding = 0, 2
        self._task_info = {index: (index % 2,) for index in range(20_000)}
        self._data_queue = self._worker_result_queue = results

    def _next_data(self):
        self._rcvd_idx += 1


def test_the_cost_in_the_step_thread(trainer):
    """About 2 us a batch; the least of many, with room for a busy machine."""
    plain, loads = Instant._next_data, Loads(trainer.session.recorder)
    loop, loader = Loop(), DataLoader(data.Planted(4), num_workers=2)
    results = torch.multiprocessing.get_context("fork").Queue()
    patch._with_workers(Instant, trainer.auto, loads, loop)

    def seconds(iterator, advance) -> float:
        began = time.perf_counter()
        for _ in range(500):
            advance(iterator)
        return (time.perf_counter() - began) / 500

    with trainer.auto.loader:
        iterator = Instant(loader, results)
        trainer.auto.loaders.change(iterator)
        bare = min(seconds(iterator, plain) for _ in range(10))
        timed = min(seconds(iterator, Instant._next_data) for _ in range(20))
    assert trainer.snapshot().loader["batches"] == 10_000
    assert timed - bare < 6e-6, f"{(timed - bare) * 1e6:.2f} us"


# ---- What it relies on upstream


def test_upstream_is_as_the_patch_takes_it():
    names = list(inspect.signature(upstream_worker._worker_loop).parameters)
    assert [names.index(name) for name in ("dataset", "index_queue", "data_queue", "worker_id")] == [
        1,
        2,
        3,
        10,
    ]
    source = inspect.getsource(upstream._MultiProcessingDataLoaderIter.__init__)
    assert "target=_utils.worker._worker_loop" in source
    loop = inspect.getsource(upstream_worker._worker_loop)
    for text in (
        "index_queue.get(timeout=",
        "data_queue.put((idx, data))",
        "idx, index = r",
        "fetcher.fetch(index)",
    ):
        assert text in loop
    for kind in (upstream_fetch._MapDatasetFetcher, upstream_fetch._IterableDatasetFetcher):
        assert inspect.getsource(kind.fetch).count("self.collate_fn") == 1
        assert issubclass(kind, upstream_fetch._BaseDatasetFetcher)
    fetcher = upstream_fetch._MapDatasetFetcher([1], True, list, False)
    assert vars(fetcher)["collate_fn"] is list and vars(fetcher)["dataset"] == [1]


def test_upstream_iterators_have_what_is_asked():
    iterator = iter(DataLoader(data.Planted(8), num_workers=2, prefetch_factor=2))
    assert (iterator._rcvd_idx, iterator._tasks_outstanding, len(iterator._task_info)) == (0, 4, 4)
    assert iterator._task_info[1] == (1,) and iterator._shutdown is False
    assert iterator._data_queue is iterator._worker_result_queue
    assert iterator._worker_result_queue.qsize() in range(5)
    next(iterator)
    assert iterator._rcvd_idx == 1
    list(iterator)
    assert iterator._shutdown is True
    single = iter(DataLoader(data.Planted(2)))
    assert single._dataset_fetcher.dataset is single._dataset
    names = upstream._SingleProcessDataLoaderIter._next_data.__code__.co_names
    assert {"_dataset_fetcher", "fetch"} <= set(names)


# ---- A whole script


def test_a_script_with_one_line(directory):
    script = SUPPORT / "frameworks" / "scripts" / "loader_script.py"
    environ = {**os.environ, "GOODPUT_DIR": directory, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, script], env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    # The workers are no ranks, though they import the script and iterate a loader of their own.
    assert found["pages"] == 1 and found["steps"] >= 18
    assert "workers" in found["advice"] and "% of the wait is" in found["advice"]
    assert "worker" in found["error"] and ("Killed" in found["error"] or "unexpectedly" in found["error"])
    assert found["drops"] == 0 and found["said"] == []
    assert "goodput" not in done.stderr
