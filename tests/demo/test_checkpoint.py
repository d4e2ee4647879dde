"""Checkpoints: the way there and back, and what a failure or a SIGKILL in the middle of a save leaves."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import numpy as np
import pytest

from goodput.demo.checkpoint import restore, save
from goodput.demo.model import Adam, Model, Sizes


def _trained(updates: int, hidden=(5,)) -> tuple[Model, Adam]:
    model = Model(Sizes(vocabulary=9, context=2, embedding=3, hidden=hidden))
    adam = Adam(model.parameters.size)
    for step in range(updates):
        _train(model, adam, step)
    return model, adam


def _train(model: Model, adam: Adam, step: int) -> None:
    random = np.random.default_rng(step)
    model.forward(random.integers(0, 9, (6, 2)), random.integers(0, 9, 6))
    adam.update(model.parameters, model.backward())


@pytest.fixture
def path(tmp_path):
    return tmp_path / "checkpoint.npz"


def test_no_checkpoint_is_none(path):
    assert restore(path, *_trained(0)) is None
    assert restore(path.parent / "not there" / path.name, *_trained(0)) is None


def test_training_continues_from_a_checkpoint_bit_by_bit(path):
    straight, _ = _trained(7)
    save(path, 3, *_trained(4))
    model, adam = _trained(0)
    assert restore(path, model, adam) == 3
    for later in range(4, 7):
        _train(model, adam, later)
    assert model.parameters.tobytes() == straight.parameters.tobytes()
    assert adam.updates == 7


def test_only_the_newest_checkpoint_is_kept(path):
    path.with_suffix(".partial").write_bytes(b"left behind by a save that was killed")
    for step in (10, 20, 15):
        save(path, step, *_trained(1))
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert restore(path, *_trained(0)) == 15


def test_checkpoint_is_replaced_atomically(path):
    save(path, 10, *_trained(1))
    before = path.read_bytes()
    with path.open("rb") as held:
        save(path, 10, *_trained(2))
        assert held.read() == before
    assert path.read_bytes() != before


def test_failed_write_keeps_the_last_checkpoint(path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, "disk full")

    save(path, 10, *_trained(1))
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="disk full"):
        save(path, 20, *_trained(2))
    assert restore(path, *_trained(0)) == 10


def test_pickled_objects_are_never_loaded(path):
    np.savez(path, parameters=np.array([print], dtype=object))
    with pytest.raises(ValueError, match="allow_pickle"):
        restore(path, *_trained(0))


def test_a_checkpoint_of_another_size_is_refused(path):
    save(path, 10, *_trained(1))
    model, adam = _trained(0, hidden=(6,))
    before = model.parameters.copy()
    with pytest.raises(ValueError, match="parameters, expected"):
        restore(path, model, adam)
    np.testing.assert_array_equal(model.parameters, before)


_SAVE_FOREVER = """
import sys
from pathlib import Path
from goodput.demo.checkpoint import save
from goodput.demo.model import Adam, Model, Sizes
model = Model(Sizes(vocabulary=9, context=2, embedding=3, hidden=(500,)))
adam = Adam(model.parameters.size)
for step in range(100_000):
    model.parameters[:] = step
    save(Path(sys.argv[1]), step, model, adam)
    print(step, flush=True)
"""


def test_sigkill_while_saving_loses_no_committed_checkpoint(path):
    for round_ in range(3):
        command = [sys.executable, "-c", _SAVE_FOREVER, str(path)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            committed = [int(child.stdout.readline()) for _ in range(8 + round_)][-1]
        finally:
            child.kill()
            child.communicate(timeout=300)
        model, adam = _trained(0, hidden=(500,))
        step = restore(path, model, adam)
        assert step >= committed
        assert (model.parameters == step).all()
