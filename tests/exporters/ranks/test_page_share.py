"""Thousands of page files of one user, and files that only look like pages: the ranks of others are read all the same."""

import json
import os
import struct
from collections import Counter

import pytest
from support.node.node_rank import Rank, identity
from support.node.node_tree import MS, collect
from support.other_users import ATTACKER, VICTIM, as_root

from goodput.rank_page import page
from goodput_exporters.agent import Agent
from goodput_exporters.collector import Settings
from goodput_exporters.collectors.ranks import collector as ranks_module
from goodput_exporters.collectors.ranks import page_share
from goodput_exporters.collectors.ranks.collector import Ranks

FAKES, HONEST = 4300, 8


@pytest.fixture
def opened(monkeypatch):
    """The paths of the pages that are opened."""
    paths = []
    reader = ranks_module.Reader
    monkeypatch.setattr(ranks_module, "Reader", lambda path: paths.append(path) or reader(path))
    return paths


def fake(directory, number: int, owner: int = ATTACKER) -> None:
    """A sound page of few bytes on the disk."""
    blob = json.dumps(identity(run="fake", rank=number, world_size=FAKES)).encode()
    words = struct.pack("<4Q", page.MAGIC, page.VERSION, page.FILE_BYTES, len(blob))
    head = (words.ljust(page.IDENTITY_OFFSET, b"\0") + blob).ljust(8 * page.W_STEP_NEXT, b"\0")
    fd = os.open(directory / f"fake{number}.page", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    os.write(fd, head + struct.pack("<Q", page.STEP_BIAS))
    os.ftruncate(fd, page.FILE_BYTES)
    os.fchown(fd, owner, -1)
    os.close(fd)


def honest(directory, count: int, owner: int = VICTIM) -> list[Rank]:
    ranks = [Rank(directory, run=f"own{owner}", rank=number) for number in range(count)]
    for rank in ranks:
        rank.step({"forward": MS})
        os.chown(rank.path, owner, -1)
    return ranks


def owners(ranks) -> Counter:
    return Counter(rank.owner for rank in ranks._ranks.values())


def runs(reports) -> Counter:
    return Counter(report.identity.run for report in reports)


@as_root
@pytest.mark.parametrize("is_sound", [True, False])
def test_flood_of_one_user_leaves_others_read(tree, ranks, opened, is_sound):
    for number in range(FAKES):
        if is_sound:
            fake(tree / "pages", number)
        else:
            path = tree / "pages" / f"fake{number}.page"
            path.touch()
            os.chown(path, ATTACKER, -1)
    held = honest(tree / "pages", HONEST)
    bound = Settings("").user_pages_max
    assert runs(ranks.poll())[f"own{VICTIM}"] == HONEST
    assert len(opened) == bound + HONEST
    ranks.poll()
    # Those that are followed keep their place; of those that are no pages others are tried.
    assert len(set(opened)) == len(opened) == bound + HONEST + (0 if is_sound else bound)
    found = collect(ranks)
    assert found["goodput_node_pages", ("refused",)] == FAKES - bound
    assert found["goodput_node_page_errors_total", ("user",)] == 2 * (FAKES - bound)
    assert sum(name == "goodput_steps_total" for name, _ in found) == HONEST + (bound if is_sound else 0)
    assert ranks.refusals() == [
        f"{FAKES - bound} rank pages of user {ATTACKER} are refused: the agent follows at most {bound} of one user"
    ]
    assert owners(ranks)[VICTIM] == len(held)


@as_root
def test_users_share_the_bound_of_all_pages(tree, clock):
    settings = Settings(directory=str(tree / "pages"), procfs=str(tree / "proc"), pages_max=6)
    ranks = Ranks(settings)
    for number in range(8):
        fake(tree / "pages", number)
    ranks.poll()
    assert owners(ranks) == {ATTACKER: 6}
    held = honest(tree / "pages", 4)
    for _ in range(2):
        ranks.poll()
        assert owners(ranks) == {ATTACKER: 3, VICTIM: 3}, "equal parts, and stable"
    held += honest(tree / "pages", 5, owner=0)
    ranks.poll()
    assert owners(ranks)[0] == 5, "root's come first"
    assert collect(ranks)["goodput_node_pages", ("refused",)] > 0 and held
    assert "6 pages are followed already" in " ".join(ranks.refusals())
    ranks.close()


@as_root
def test_agents_health_names_refused_ranks(tree, clock):
    settings = {"sysfs": str(tree / "sys"), "procfs": str(tree / "proc"), "user_pages_max": 1}
    agent = Agent(str(tree / "pages"), **settings)
    agent.poll()
    assert (agent.health(), agent.warnings()) == (None, "")
    held = honest(tree / "pages", 3)
    agent.poll()
    assert agent.health() is None, "a probe must not end the agent for what a user does"
    assert agent.warnings().startswith(f"2 rank pages of user {VICTIM} are refused")
    agent.stop()
    assert held


def test_page_that_shrinks_is_refused_alone(tree, ranks):
    """Pages are read, never mapped: one that is cut short under the reader is an error and no SIGBUS."""
    cut, whole = Rank(tree / "pages", run="cut"), Rank(tree / "pages", run="whole")
    assert runs(ranks.poll()) == {"cut": 1, "whole": 1}
    os.truncate(cut.path, 0)
    assert runs(ranks.poll()) == {"whole": 1}
    collect(ranks)
    os.truncate(cut.path, page.FILE_BYTES)
    os.truncate(whole.path, 8 * page.LIVE + 8)
    ranks.poll()
    assert collect(ranks)["goodput_node_page_errors_total", ("truncated",)] >= 2


def test_strange_files_cost_no_page(tree, ranks, opened):
    directory, rank = tree / "pages", Rank(tree / "pages", run="whole")
    os.mkfifo(directory / "fifo.page")
    (directory / "folder.page").mkdir()
    (directory / "link.page").symlink_to(rank.path)
    (directory / "loop.page").symlink_to("loop.page")
    os.close(os.open(directory / "huge.page", os.O_CREAT | os.O_WRONLY))
    os.truncate(directory / "huge.page", 1 << 40)
    (directory / "\x1b[31m\nname .page").touch()
    os.link(rank.path, directory / "again.page")
    if os.geteuid() == 0:
        os.mknod(directory / "null.page", 0o020666, os.makedev(1, 3))
    assert runs(ranks.poll()) == {"whole": 1}
    ranks.poll()
    assert len(ranks._ranks) == 1, "another name of a page is not another rank"
    assert collect(ranks)["goodput_node_pages", ("rejected",)] >= 6


@pytest.mark.parametrize("count", [300, 600])
def test_drafts_are_bounded(tree, ranks, count):
    for number in range(count):
        (tree / "pages" / f".1.{number}.page").touch()
    ranks.poll()
    assert len(ranks._drafts) == ranks_module.DRAFTS_MAX


@as_root
def test_steps_of_one_user_are_bounded(tmp_path, monkeypatch):
    """Pages that claim a whole ring of new steps at each poll take neither all of the agent's time nor its backlog."""
    monkeypatch.setattr(page_share, "ROWS_AT_ONCE", 20)
    now = [0]
    agent = Ranks(Settings(directory=str(tmp_path), monotonic_ns=lambda: now[0]))
    greedy, own = honest(tmp_path, 3, ATTACKER), honest(tmp_path, 1)
    for _ in range(14):
        for rank in greedy:
            rank.step({"forward": MS})
    reports = agent.poll()
    assert runs(reports) == {f"own{ATTACKER}": 2, f"own{VICTIM}": 1}
    assert agent._errors["user"] == 1 and sum(len(report.steps) for report in reports) == 31
    now[0] = 10**9
    assert [len(report.steps) for report in agent.poll()].count(15) == 1, "the third page had to wait"
    assert own and agent._errors["user"] == 1
    agent.close()
