"""Batches of quick loaders are measured now and then; unusual fetchers keep working."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch==2.13.0")
import support.frameworks.loader_datasets as data  # noqa: E402
from support.core_wait import CoreWait  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402
from torch.utils.data._utils import fetch as upstream_fetch  # noqa: E402

from goodput.rank_page import page  # noqa: E402
from goodput.sdk.automatic import loader_stats  # noqa: E402

pytestmark = pytest.mark.torch


def test_quick_loader_is_sampled(trainer):
    """All batches are counted; the reasons of the measured ones stand for the skipped ones."""
    kind = upstream_fetch._MapDatasetFetcher
    before, loader = dict(vars(kind)), DataLoader(range(1000), batch_size=2)
    iterator = iter(loader)
    fetches, measured = trainer.auto.training.fetches, 0
    trainer.auto.loaders.change(iterator)
    fetches.set_iterator(trainer.auto.loaders._current, True)
    waited = CoreWait()
    for _ in range(500):
        measured += fetches.skips_left == 0
        with trainer.auto.loader:
            next(iterator)
        assert type(iterator._dataset_fetcher) is kind
    assert list(iterator) == [] and dict(vars(kind)) == before
    found = trainer.snapshot().loader
    assert found["batches"] == found["inside"] == 500
    assert 8 <= measured <= 40  # One in 61, or one in 17 where the machine is slow.
    assert 0 < found["wait_ns"] <= trainer.snapshot().totals[page.PHASES.index("loader")]
    reasons = sum(found[f"wait_{why}_ns"] for why in ("storage", "decode", "collate"))
    # The last skipped batches have no reasons, nor has the wait for a core between two of them.
    without_ns = fetches.skipped_ns + 1e9 * waited.seconds()
    assert 0.9 * found["wait_ns"] - without_ns < reasons <= found["wait_ns"]


def test_short_epochs_are_sampled_evenly(trainer, monkeypatch):
    """The first or every n-th batch of an epoch is measured no more often than the others."""
    monkeypatch.setattr(loader_stats, "VERY_QUICK_NS", 1 << 60)
    monkeypatch.setattr(loader_stats, "QUICK_NS", 1 << 60)
    loader, fetches, measured = DataLoader(range(12)), trainer.auto.training.fetches, []
    for _ in range(61):
        iterator = iter(loader)
        trainer.auto.loaders.change(iterator)
        fetches.set_iterator(trainer.auto.loaders._current, True)
        for at in range(12):
            measured += [at] * (fetches.skips_left == 0)
            with trainer.auto.loader:
                next(iterator)
    assert len(measured) == 12 and sorted(measured) == list(range(12))
    assert fetches.skips_left == 0 < fetches.skipped_ns
    # The first batch of another loader is measured.
    trainer.auto.loaders.change(iter(DataLoader(range(3))))
    assert fetches.sampling and fetches.skips_left == fetches.skipped_ns == 0


def test_nested_fetch_is_not_counted(trainer):
    fetches, other = trainer.auto.training.fetches, iter(DataLoader(range(3)))
    found = loader_stats.LoaderStats(trainer.session.recorder, fetches)
    trainer.auto.loaders.change(other)
    fetches.set_iterator(trainer.auto.loaders._current, True)
    fetches.set_sampling(True, False)
    fetches.measured(other, 5)
    found.batch_skipped(trainer, 7)
    assert (fetches.skips_left, fetches.skipped_ns) == (5, 0)
    found.batch_skipped(other, 9)
    assert (fetches.skips_left, fetches.skipped_ns) == (4, 9)
    # A slow skipped batch has no reason, and the next one is measured.
    found.batch_skipped(other, loader_stats.QUICK_NS)
    assert (fetches.skips_left, fetches.skipped_ns) == (0, 9)
    words = trainer.snapshot().loader
    assert (words["batches"], words["wait_ns"]) == (3, 7 + 9 + loader_stats.QUICK_NS)


def test_repeated_fetch_keeps_other_training_loaders(trainer):
    """The compiled hook does not update this list, so the Python hook must not depend on each fetch."""
    loaders, first, second = trainer.auto.loaders, DataLoader(range(4)), DataLoader(range(4))
    one, other = iter(first), iter(second)
    next(one)
    loaders.step_ended()
    next(other)
    assert [ref() for ref in loaders.used] == [second]
    next(one), next(one)
    assert [ref() for ref in loaders.used] == [second]
    next(other), next(other)  # Used again twice: removed once.
    assert [ref() for ref in loaders.used] == [second]


class Odd:
    """A user's fetcher whose __class__ raises."""

    __class__ = property(lambda self: 1 / 0)

    def fetch(self, indices):
        return indices


def test_user_fetcher_keeps_its_collate_fn(trainer):
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


def test_fixed_collate_fn_is_timed_as_a_whole(trainer):
    class Fixed(upstream_fetch._MapDatasetFetcher):
        collate_fn = property(lambda self: list, lambda self, value: None)

    iterator = iter(DataLoader(data.Planted(4, sleep=0.01), batch_size=2))
    iterator._dataset_fetcher.__class__ = Fixed
    assert len(list(iterator)) == 2
    assert type(iterator._dataset_fetcher) is Fixed
    found = trainer.snapshot().loader
    assert found["batches"] == 2 and found["wait_ns"] > 40_000_000 and found["wait_collate_ns"] == 0
