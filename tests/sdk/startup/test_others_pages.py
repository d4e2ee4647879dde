"""Pages of other users in the page directory: a process joins none of their runs, whatever they name."""

import multiprocessing.process
import os
from types import SimpleNamespace

import pytest
from support.other_users import ATTACKER, as_root, start_as
from support.rank_page.page_maker import identity

from goodput.rank_page import page
from goodput.sdk.startup import unranked


@as_root
@pytest.mark.parametrize("owner, run", [(0, "r"), (ATTACKER, None)])
def test_child_joins_only_its_parents_run(tmp_path, monkeypatch, owner, run):
    """The page of any user may name the parent's pid."""
    directory = str(tmp_path / "pages")
    page.make_directory(directory)
    ready, is_ready = os.pipe()
    over, is_over = os.pipe()
    named = identity(run="r", pid=os.getpid(), worker="MainProcess", launch="", root_pid=os.getpid())

    def forge() -> None:
        os.close(is_over)
        writer = page.Writer(".", named | {"pid_start_ticks": page.process_start_ticks(named["pid"])})
        os.write(is_ready, b"1")
        os.read(over, 1)
        writer.close()

    child = start_as(owner, forge, directory)
    monkeypatch.setattr(multiprocessing.process, "parent_process", lambda: SimpleNamespace(pid=os.getpid()))
    try:
        assert os.read(ready, 1) == b"1"
        assert unranked.related_run(directory) == run
    finally:
        os.close(is_over)
        os.waitpid(child, 0)
        for descriptor in (ready, is_ready, over):
            os.close(descriptor)
