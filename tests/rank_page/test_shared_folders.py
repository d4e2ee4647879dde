"""Live pages in a folder where any user may write, beside the private folder that is read: each reader says so."""

import logging
import os
import subprocess
import sys

import pytest
from support.node.node_rank import Process

from goodput.rank_page import page
from goodput.rank_page.shared_folders import pages_beside
from goodput_exporters.agent import Agent


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """A private folder, which $GOODPUT_DIR names, and the shared one of $TMPDIR, with a live page in each."""
    private, shared = tmp_path / "private", tmp_path / "tmp" / "goodput"
    private.mkdir(mode=0o700)
    shared.parent.mkdir()
    page.make_directory(str(shared))
    monkeypatch.setenv("TMPDIR", str(shared.parent))
    monkeypatch.setenv("GOODPUT_DIR", str(private))
    ranks = [Process(private, run="mine"), Process(shared, run="other")]
    yield str(private), str(shared), ranks[1]
    for rank in ranks:
        rank.kill()


def of(shared: str, messages: list[str]) -> list[str]:
    """Those of this folder: the machine's own may have pages too."""
    return [text for text in messages if f" in {shared}," in text]


@pytest.mark.parametrize("command", [["report"], ["top", "--once"], ["probe", "loader", "--run", "mine"]])
def test_commands_name_pages_in_a_shared_folder(folders, command):
    private, shared, _ = folders
    done = subprocess.run(
        [sys.executable, "-m", "goodput", *command],
        env=os.environ | {"COLUMNS": "400"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    text = f"1 live rank page of yours in {shared}, where any user may write: not read: {private} is. --directory {shared} reads"
    assert text in done.stdout + done.stderr


def test_agent_names_pages_that_it_does_not_read(folders, caplog):
    private, shared, _ = folders
    with caplog.at_level(logging.WARNING, "goodput.node"), Agent(private, aggregator=None):
        pass
    (text,) = of(shared, [record.getMessage() for record in caplog.records])
    assert text.startswith("1 live rank page in ") and f"not read: {private} is" in text


def test_nothing_is_said_without_a_reason(folders):
    private, shared, rank = folders
    environ = {"TMPDIR": os.path.dirname(shared)}
    assert of(shared, pages_beside([private], os.geteuid(), environ))
    assert not of(shared, pages_beside([private], os.geteuid() + 1, environ)), "another user's page"
    assert not pages_beside([shared], None, environ), "a reader of a shared folder"
    both = of(shared, pages_beside([private, shared], None, environ))
    assert [text.partition(": ")[2] for text in both] == [f"read beside {private}"]
    rank.kill()
    assert not of(shared, pages_beside([private], None, environ)), "the process has ended"
