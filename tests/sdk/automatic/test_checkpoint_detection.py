"""The step of a loaded checkpoint, with what earlier attempts committed; which files are on disk."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest

from goodput.rank_page import page
from goodput.sdk.automatic import checkpoint_detection
from goodput.sdk.automatic.checkpoint_files import EarlierAttempts
from goodput.sdk.startup.resolve_identity import resolve_identity


def written(directory, attempt: int, committed=(), begun=(), rank: int = 0) -> page.Writer:
    declared = {"run": "r/1", "rank": rank, "world_size": 2}
    identity = {**resolve_identity(declared, {}, lambda text: None, fresh=True), "attempt": attempt}
    writer = page.Writer(str(directory), identity)
    for kind, steps in (("checkpoint_begun", begun), ("checkpoint_committed", committed)):
        for step in steps:
            page.write_event(writer.words, kind, 5, step, b"")
    writer.close()
    return writer


def auto_of(directory, attempt: int):
    path = written(directory, attempt).path
    return SimpleNamespace(
        session=SimpleNamespace(
            identity={"run": "r/1", "rank": 0, "attempt": attempt}, writer=SimpleNamespace(path=path)
        )
    )


@pytest.mark.parametrize(
    ("committed", "number", "last"),
    [
        ([10, 20], 20, 20),  # the index of the last step
        ([10, 20], 10, 10),
        ([9, 19], 20, 19),  # how many were done
        ([18, 19, 20], 20, 19),  # saved after each step: as it is without pages
        ([9, 19], 30, 29),
        ([], 20, 19),
    ],
)
def test_committed_number_is_an_index_else_a_count(tmp_path, committed, number, last):
    written(tmp_path, 1, committed)
    assert checkpoint_detection.resumed_step(auto_of(tmp_path, 3), {"step": number}) == last


def test_only_earlier_attempts_of_this_rank_count(tmp_path):
    written(tmp_path, 1, [4], begun=[20])
    written(tmp_path, 2, [20], rank=1)
    (tmp_path / page.file_name("r/1", 0, 2)).write_bytes(b"no page")
    auto = auto_of(tmp_path, 3)
    written(tmp_path, 4, [20])
    assert EarlierAttempts(auto.session).steps == {4}
    assert checkpoint_detection.resumed_step(auto, {"step": 20}) == 19
    # Fabric's examples save the micro-batches beside the optimizer's steps.
    assert checkpoint_detection.resumed_step(auto, {"iter_num": 40, "step_count": 20}) == 19
    assert checkpoint_detection.resumed_step(auto, {"epoch": 20}) is None


def test_broken_page_hides_no_other(tmp_path):
    written(tmp_path, 1, [7])
    broken = written(tmp_path, 2, [9]).path
    with open(broken, "r+b") as file:
        file.truncate(5000)
    assert checkpoint_detection.resumed_step(auto_of(tmp_path, 3), {"step": 7}) == 7
    for session in (None, SimpleNamespace(identity={}, writer=SimpleNamespace(path=None))):
        assert checkpoint_detection.resumed_step(SimpleNamespace(session=session), {"step": 7}) == 6


class Remote:
    """A file of another system, writable and without a descriptor."""

    def write(self, data):
        return len(data)

    def flush(self):
        pass

    def fileno(self):
        raise io.UnsupportedOperation("fileno")


class Hostile:
    def __getattr__(self, name):
        raise RuntimeError(name)


def test_buffers_in_memory_are_not_on_disk(tmp_path):
    with open(tmp_path / "a", "wb") as file:
        assert checkpoint_detection.is_on_disk(file)
    assert all(map(checkpoint_detection.is_on_disk, (tmp_path, "a", Remote())))
    assert not any(map(checkpoint_detection.is_on_disk, (io.BytesIO(), io.StringIO(), Hostile(), None)))
