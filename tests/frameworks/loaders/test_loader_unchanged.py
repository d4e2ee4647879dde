"""What a loader yields, its errors and its random numbers stay the same; the upstream code relied on."""

from __future__ import annotations

import inspect
import random

import pytest
from support.mentions import mentions_goodput

numpy = pytest.importorskip("numpy")
torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch==2.13.0")
import support.frameworks.loader_datasets as data  # noqa: E402
from support.frameworks.loader_trainer import UNPATCHED, Trainer, patched  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402
from torch.utils.data import dataloader as upstream  # noqa: E402
from torch.utils.data._utils import fetch as upstream_fetch  # noqa: E402
from torch.utils.data._utils import worker as upstream_worker  # noqa: E402

from goodput.sdk.automatic.loader_worker import ARGUMENTS  # noqa: E402

pytestmark = pytest.mark.torch


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


def test_unordered_loader_yields_every_sample(trainer):
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
def test_worker_errors_keep_their_traceback(directory, make):
    bare = raised(make)
    trainer = Trainer(directory)
    with trainer.auto.loader:
        measured = raised(make)
    trainer.auto.patches.restore()
    assert measured == bare and not mentions_goodput(measured)


def test_restore_with_workers_alive(directory):
    trainer = Trainer(directory)
    with trainer.auto.loader:
        iterator = iter(DataLoader(data.Planted(8), batch_size=2, num_workers=1))
        next(iterator)
        trainer.auto.patches.restore()
        assert patched() == UNPATCHED
        assert len(list(iterator)) == 3
    assert trainer.snapshot().loader["batches"] == 1


def test_broken_page_does_not_stop_the_loop(trainer):
    """Worker slots cannot be opened, then the iterator's entry is missing: the batches still arrive."""
    fd, trainer.session.writer.fd = trainer.session.writer.fd, 10**6
    with trainer.auto.loader:
        assert len(list(DataLoader(data.Planted(8), batch_size=2, num_workers=1))) == 4
        trainer.session.writer.fd = fd
        iterator = iter(DataLoader(data.Planted(8), batch_size=2, num_workers=1))
        iterator._goodput_watched.entry = None
        assert len(list(iterator)) == 4
    assert len(trainer.session.messages.written) == 1
    trainer.session.messages.written.clear()


def test_upstream_worker_loop():
    names = list(inspect.signature(upstream_worker._worker_loop).parameters)
    assert {name: names.index(name) for name in ARGUMENTS} == ARGUMENTS
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


def test_upstream_iterator_attributes():
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
