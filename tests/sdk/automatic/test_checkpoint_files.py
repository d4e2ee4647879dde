"""Files that are recognised as saved by an earlier attempt, and those whose step stays unknown."""

from __future__ import annotations

import os
import shutil
from types import SimpleNamespace

import pytest

from goodput.rank_page import page
from goodput.sdk.automatic.checkpoint_files import EarlierAttempts, fingerprint
from goodput.sdk.startup.resolve_identity import resolve_identity


def page_of(directory, attempt: int, events=(), rank: int = 0, world: int = 1) -> page.Writer:
    declared = {"run": "r", "rank": rank, "world_size": world}
    identity = {**resolve_identity(declared, {}, lambda text: None, fresh=True), "attempt": attempt}
    writer = page.Writer(str(directory), identity)
    for kind, step, text in events:
        page.write_event(writer.words, kind, 5, step, text.encode())
    writer.close()
    return writer


def earlier(directory, rank: int = 0, world: int = 1) -> EarlierAttempts:
    identity = {"run": "r", "rank": rank, "attempt": 3, "world_size": world}
    return EarlierAttempts(
        SimpleNamespace(identity=identity, writer=SimpleNamespace(path=str(directory / "page")))
    )


def test_a_file_is_known_under_another_name(tmp_path):
    saved = tmp_path / "step-60.pt"
    saved.write_bytes(os.urandom(300_000))
    known = fingerprint(saved)
    assert known.startswith("file ") and len(known) <= page.EVENT_TEXT_BYTES
    (tmp_path / "latest.pt").symlink_to(saved)
    shutil.copy(saved, tmp_path / "copy.pt")
    with open(saved, "rb") as file:
        assert {
            fingerprint(tmp_path / "latest.pt"),
            fingerprint(str(tmp_path / "copy.pt")),
            fingerprint(file),
        } == {known}
    saved.rename(tmp_path / "renamed.pt")
    assert fingerprint(tmp_path / "renamed.pt") == known


@pytest.mark.parametrize("at", [0, 150_000, 299_999])
def test_another_save_of_equal_length_differs(tmp_path, at):
    """A save changes all tensors, so a byte here and there is not looked for, but those of each part."""
    content = bytearray(300_000)
    (tmp_path / "a").write_bytes(content)
    content[at : at + 30_000] = b"x" * len(content[at : at + 30_000])
    (tmp_path / "b").write_bytes(content)
    assert fingerprint(tmp_path / "a") != fingerprint(tmp_path / "b")


def test_a_directory_is_known_by_its_list_of_contents(tmp_path):
    directory = tmp_path / "distributed"
    directory.mkdir()
    assert fingerprint(directory) == ""
    (directory / ".metadata").write_bytes(b"a save")
    assert fingerprint(directory).startswith("directory ")
    (tmp_path / "accelerate").mkdir()
    (tmp_path / "accelerate" / "model.safetensors").write_bytes(b"weights")
    assert fingerprint(tmp_path / "accelerate").startswith("file ")


def test_what_is_no_file_has_no_fingerprint(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for file in (tmp_path / "pipe", tmp_path / "missing", "s3://bucket/a.pt", None, 3, "\0"):
        assert fingerprint(file) == ""


def test_ranks_find_the_commit_of_another_rank(tmp_path):
    """Only if each of them does: the pages of all ranks are on this machine."""
    page_of(tmp_path, 1, [("checkpoint_committed", 59, "file 1-a")], rank=0, world=2)
    assert earlier(tmp_path, rank=0, world=2).step_of("file 1-a") is None
    page_of(tmp_path, 1, rank=1, world=2)
    for rank in (0, 1):
        found = earlier(tmp_path, rank, world=2)
        assert (found.step_of("file 1-a"), found.step_of("file 1-b")) == (59, None)
    assert (earlier(tmp_path, 0, 2).steps, earlier(tmp_path, 1, 2).steps) == ({59}, set())


def test_all_ranks_know_what_they_saved_together(tmp_path):
    """Their pages may be on several machines."""
    page_of(tmp_path, 2, [("checkpoint_committed", 9, "directory 1-a")], rank=3, world=8)
    assert earlier(tmp_path, rank=3, world=8).step_of("directory 1-a") == 9


def test_the_last_commit_of_a_content_counts(tmp_path):
    page_of(tmp_path, 1, [("checkpoint_committed", 9, "file 1-a"), ("restored", -1, "file 1-c")])
    page_of(tmp_path, 2, [("checkpoint_committed", 19, "file 1-a")])
    found = earlier(tmp_path)
    assert found.step_of("file 1-a") == 19 and found.loaded == {"file 1-c"}
