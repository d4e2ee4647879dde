"""The training text, its vocabulary, and how its windows are dealt out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from goodput.demo.model import Adam, Model, Sizes
from goodput.demo.text import UNKNOWN, Batches, Vocabulary, read_standard_library


def test_standard_library_is_python_text_and_bounded():
    text = read_standard_library(bytes_max=100_000)
    assert len(text) == 100_000
    assert b"import " in text and b"def " in text
    assert text == read_standard_library()[:100_000]


def test_files_are_joined_in_order_of_name(tmp_path):
    (tmp_path / "b.py").write_bytes(b"second")
    (tmp_path / "a.py").write_bytes(b"first ")
    (tmp_path / "c.txt").write_bytes(b"not source")
    assert read_standard_library(folder=tmp_path) == b"first second"
    assert read_standard_library(bytes_max=8, folder=tmp_path) == b"first se"


def test_a_library_without_sources_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_standard_library(folder=tmp_path)


def test_ids_follow_frequency_then_value():
    vocabulary = Vocabulary(b"ccc aa bb", size_max=4)
    # c is there 3 times; a, b and the blank twice each, where the lower byte value goes first.
    assert vocabulary.encode(b"c a").tolist() == [1, 2, 3]
    assert vocabulary.encode(b"b!").tolist() == [UNKNOWN, UNKNOWN]
    assert vocabulary.encode(b"cab").tolist() == [1, 3, UNKNOWN]
    assert vocabulary.size == 4


@given(st.binary(max_size=300), st.integers(2, 256))
def test_each_known_byte_has_its_own_id(text, size_max):
    vocabulary = Vocabulary(text, size_max)
    tokens = vocabulary.encode(text)
    assert vocabulary.size <= size_max
    assert len(tokens) == len(text) and (tokens < vocabulary.size).all()
    known = {(byte, token) for byte, token in zip(text, tokens.tolist(), strict=True) if token != UNKNOWN}
    assert len(known) == len({token for _, token in known})
    if len(set(text)) < size_max:
        assert UNKNOWN not in tokens


def _batches(rank=0, world_size=1, batch=8, seed=5, length=1000) -> Batches:
    """Windows of 4 over a text that counts 0, 1 … 250, 0 …"""
    return Batches((np.arange(length) % 251).astype(np.uint8), rank, world_size, batch, 4, seed)


def test_target_is_the_token_behind_the_window():
    x, y = _batches().fetch(0)
    assert x.shape == (8, 4) and y.shape == (8,)
    np.testing.assert_array_equal((x[:, -1].astype(int) + 1) % 251, y)
    np.testing.assert_array_equal((x[:, :-1].astype(int) + 1) % 251, x[:, 1:])


def test_repeated_step_reads_the_same_rows():
    first, again = _batches(rank=1, world_size=2), _batches(rank=1, world_size=2)
    rows = [np.column_stack(first.fetch(step)) for step in range(10)]
    for step in (7, 3, 9):
        np.testing.assert_array_equal(np.column_stack(again.fetch(step)), rows[step])
    assert not np.array_equal(rows[0], rows[1])
    other = np.column_stack(_batches(rank=1, world_size=2, seed=6).fetch(7))
    assert not np.array_equal(other, rows[7])


@pytest.mark.parametrize("world_size", [2, 3, 6])
def test_ranks_partition_the_batch(world_size):
    for step in (0, 5):
        whole = np.column_stack(_batches(batch=4 * world_size).fetch(step))
        ranks = [_batches(rank, world_size, batch=4) for rank in range(world_size)]
        parts = np.concatenate([np.column_stack(batches.fetch(step)) for batches in ranks])
        np.testing.assert_array_equal(parts, whole)


def test_epoch_reads_each_window_once():
    batches = Batches(np.arange(200, dtype=np.uint8), 0, 1, 8, 4, 0)
    assert batches.steps_per_epoch == 196 // 8
    starts = np.concatenate([batches.fetch(step)[0][:, 0] for step in range(batches.steps_per_epoch)])
    assert len(set(starts.tolist())) == len(starts)
    np.testing.assert_array_equal(batches.fetch(batches.steps_per_epoch)[0], batches.fetch(0)[0])


def test_short_text_and_bad_rank_are_refused():
    with pytest.raises(ValueError):
        _batches(length=11)
    with pytest.raises(ValueError):
        _batches(rank=2, world_size=2)


def test_fetch_copies_nothing():
    """A batch takes microseconds, so that the planted delay is all of the loader's time."""
    batches = _batches()
    windows, targets = batches.fetch(0)
    assert windows.base is targets.base is batches.fetch(batches.steps_per_epoch)[0].base is not None


def test_the_model_learns_from_the_real_text():
    text = read_standard_library(bytes_max=200_000)
    vocabulary = Vocabulary(text, 128)
    batches = Batches(vocabulary.encode(text), 0, 1, 64, 16, 0)
    model = Model(Sizes(128, 16, 8, (64,)))
    adam = Adam(model.parameters.size, learning_rate=3e-3)
    losses = []
    for step in range(50):
        losses.append(model.forward(*batches.fetch(step)))
        adam.update(model.parameters, model.backward())
    assert losses[0] == pytest.approx(np.log(128), abs=0.3)
    assert np.mean(losses[-5:]) < 0.75 * losses[0]
