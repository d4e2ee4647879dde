"""Checkpoints: the way there and back, damage, and what stays on the disk."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import zipfile

import numpy as np
import pytest

from goodput.demo.checkpoint import latest, restore, save
from goodput.demo.model import Adam, Model


def _trained(updates: int) -> tuple[Model, Adam]:
    model = Model(vocabulary=9, context=2, embedding=3, hidden=5, seed=0)
    adam = Adam(model.parameters.size)
    for step in range(updates):
        _train(model, adam, step)
    return model, adam


def _train(model: Model, adam: Adam, step: int) -> None:
    random = np.random.default_rng(step)
    model.forward(random.integers(0, 9, (6, 2)), random.integers(0, 9, 6))
    adam.update(model.parameters, model.backward())


def _names(directory) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_no_checkpoint_is_none(tmp_path):
    assert latest(tmp_path) is None
    assert latest(tmp_path / "not there") is None


def test_training_continues_from_a_checkpoint_bit_by_bit(tmp_path):
    straight, _ = _trained(7)
    path = save(tmp_path / "new" / "folder", 3, *_trained(4))
    assert path.name == "step-00000003.npz" and path.is_file()
    step, arrays = latest(path.parent)
    assert step == 3
    model, adam = _trained(0)
    restore(arrays, model, adam)
    for later in range(step + 1, 7):
        _train(model, adam, later)
    assert model.parameters.tobytes() == straight.parameters.tobytes()
    assert adam.updates == 7


def test_three_newest_checkpoints_are_kept(tmp_path):
    model, adam = _trained(1)
    (tmp_path / "saving.partial").write_bytes(b"left behind by a save that was killed")
    (tmp_path / "notes.txt").write_text("not a checkpoint")
    for step in (10, 20, 30, 40, 50):
        save(tmp_path, step, model, adam)
    expected = ["notes.txt", "step-00000030.npz", "step-00000040.npz", "step-00000050.npz"]
    assert _names(tmp_path) == expected
    assert latest(tmp_path)[0] == 50


def test_earlier_save_removes_later_checkpoints(tmp_path):
    model, adam = _trained(1)
    for step in (10, 20, 30):
        save(tmp_path, step, model, adam)
    save(tmp_path, 15, model, adam)
    assert _names(tmp_path) == ["step-00000010.npz", "step-00000015.npz"]
    assert latest(tmp_path)[0] == 15


@pytest.mark.parametrize("kept", [0, 1, 30, 500, -200, -1], ids=lambda size: f"first {size} bytes")
def test_truncated_checkpoint_is_skipped(tmp_path, kept):
    model, adam = _trained(1)
    save(tmp_path, 10, model, adam)
    newest = save(tmp_path, 20, model, adam)
    newest.write_bytes(newest.read_bytes()[:kept])
    assert latest(tmp_path)[0] == 10


def test_no_flipped_byte_is_read_as_data(tmp_path):
    model, adam = _trained(2)
    save(tmp_path, 10, model, adam)
    newest = save(tmp_path, 20, model, adam)
    whole, good = newest.read_bytes(), latest(tmp_path)[1]
    for place in range(0, len(whole), 7):
        newest.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        step, arrays = latest(tmp_path)
        # A byte that means nothing, such as a file date's, may change; the arrays may not.
        assert step == 10 or all(arrays[name].tobytes() == good[name].tobytes() for name in good), place


def test_short_header_is_damage(tmp_path):
    # 9·3 + (6·2000 + 2000) + (2000·9 + 9) = 32 036 parameters. NumPy alone would read 12 036 of them, stop
    # before the place where the checksum is compared, and not complain.
    model = Model(vocabulary=9, context=2, embedding=3, hidden=2000, seed=0)
    adam = Adam(model.parameters.size)
    save(tmp_path, 10, model, adam)
    newest = save(tmp_path, 20, model, adam)
    whole = newest.read_bytes()
    assert whole.count(b"(32036,)") == 3
    newest.write_bytes(whole.replace(b"(32036,)", b"(12036,)"))
    assert latest(tmp_path)[0] == 10


def test_checkpoint_is_replaced_atomically(tmp_path):
    path = save(tmp_path, 10, *_trained(1))
    before = path.read_bytes()
    with path.open("rb") as held:
        save(tmp_path, 10, *_trained(2))
        assert held.read() == before
    assert path.read_bytes() != before


def test_failed_write_leaves_no_checkpoint(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, "disk full")

    save(tmp_path, 10, *_trained(1))
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="disk full"):
        save(tmp_path, 20, *_trained(2))
    assert latest(tmp_path)[0] == 10
    assert not (tmp_path / "step-00000020.npz").exists()


def test_foreign_and_renamed_files_are_skipped(tmp_path):
    model, adam = _trained(1)
    save(tmp_path, 10, model, adam)
    (tmp_path / "step-00000020.npz").write_bytes((tmp_path / "step-00000010.npz").read_bytes())
    (tmp_path / "step-00000030.npz").write_text("no archive at all")
    np.savez(tmp_path / "step-00000040.npz", other=np.zeros(3))
    with zipfile.ZipFile(tmp_path / "step-00000050.npz", "w") as archive:
        archive.writestr("step.npy", b"no array")
    (tmp_path / "step-00000060.npz").mkdir()
    assert latest(tmp_path)[0] == 10


def test_pickled_objects_are_never_loaded(tmp_path):
    np.savez(tmp_path / "step-00000010.npz", step=np.array([print], dtype=object))
    assert latest(tmp_path) is None


def test_a_checkpoint_of_another_size_is_refused(tmp_path):
    save(tmp_path, 10, *_trained(1))
    model = Model(vocabulary=9, context=2, embedding=3, hidden=6, seed=0)
    before = model.parameters.copy()
    with pytest.raises(ValueError):
        restore(latest(tmp_path)[1], model, Adam(model.parameters.size))
    np.testing.assert_array_equal(model.parameters, before)


_SAVE_FOREVER = """
import sys
from pathlib import Path
from goodput.demo.checkpoint import save
from goodput.demo.model import Adam, Model
model = Model(vocabulary=9, context=2, embedding=3, hidden=500, seed=0)
adam = Adam(model.parameters.size)
for step in range(100_000):
    model.parameters[:] = step
    save(Path(sys.argv[1]), step, model, adam)
    print(step, flush=True)
"""


def test_sigkill_while_saving_loses_no_committed_checkpoint(tmp_path):
    for round_ in range(3):
        command = [sys.executable, "-c", _SAVE_FOREVER, str(tmp_path)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            committed = [int(child.stdout.readline()) for _ in range(8 + round_)][-1]
        finally:
            child.kill()
            child.communicate(timeout=10)
        step, arrays = latest(tmp_path)
        assert step >= committed
        assert (arrays["parameters"] == step).all()
