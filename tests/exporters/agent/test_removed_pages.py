"""Pages in several folders, and pages that the agent has removed: what `goodput report` and others say of them."""

import json
import os
import re

import pytest
from support.node.agents import agent_on
from support.node.node_rank import PID, Rank
from support.node.node_tree import wait_until

from goodput.cli import main
from goodput.rank_page import page, removed_pages
from goodput.rank_page.removed_pages import RUNS_MAX, RemovedPages, read

MS = 1_000_000


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """The system's folder and the one in shared memory, as on a machine where root has made the first."""
    system, shared = tmp_path / "run", tmp_path / "shm" / "goodput"
    for folder in (system, shared):
        folder.mkdir(parents=True)
    monkeypatch.setattr(page, "SYSTEM_DIRECTORY", str(system))
    monkeypatch.setattr(page, "SHARED_DIRECTORY", str(shared))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "none"))
    monkeypatch.delenv("GOODPUT_DIR", raising=False)
    return system, shared


def stepped(folder, **given) -> Rank:
    rank = Rank(folder, **given)
    rank.many(5, {"forward": MS})
    return rank


def called(capsys, *arguments) -> tuple[int, str, str]:
    status = main([*map(str, arguments)])
    return status, *capsys.readouterr()


def test_report_reads_all_folders(folders, capsys):
    """One of a run's ranks began before root made the system's folder."""
    system, shared = folders
    stepped(system, rank=0), stepped(shared, rank=1), stepped(shared, run="other")
    status, out, _ = called(capsys, "report", "--json")
    found = {one["run"]: [rank["rank"] for rank in one["ranks"]] for one in map(json.loads, out.splitlines())}
    assert (status, found) == (0, {"r1": [0, 1], "other": [0]})
    status, out, _ = called(capsys, "report", "--json", "--directory", system)
    assert [json.loads(one)["run"] for one in out.splitlines()] == ["r1"]
    status, out, _ = called(capsys, "top", "--json")
    assert {one["run"] for one in json.loads(out)["runs"]} == {"r1", "other"}


def test_folder_of_the_environment_is_read_alone(folders, capsys, monkeypatch):
    system, shared = folders
    stepped(system), stepped(shared, run="other")
    monkeypatch.setenv("GOODPUT_DIR", str(shared))
    _, out, _ = called(capsys, "report", "--json")
    assert [json.loads(one)["run"] for one in out.splitlines()] == ["other"]


def test_folders_and_runs_are_named_where_a_run_is_missing(folders, capsys):
    system, shared = folders
    stepped(shared, run="other")
    for command in (
        ["report", "r9"],
        ["probe", "loader", "--run", "r9"],
        ["top", "r9", "--once"],
    ):
        status, _, wrong = called(capsys, *command)
        assert status == 1 and str(system) in wrong and str(shared) in wrong, wrong
    assert "no run 'r9'" in called(capsys, "report", "r9")[2]
    assert "the runs there: other" in called(capsys, "report", "r9")[2]


def test_removed_pages_are_named_with_their_aggregator(folders, capsys, tree, clock, aggregator):
    system, _ = folders
    rank = stepped(system)
    (tree / "proc" / str(PID) / "stat").unlink()
    given = {"interval_seconds": 0.01, "push_interval_seconds": 0.02, "grace_seconds": 1.0}
    url = aggregator.url.replace("://", "://user:secret@")
    with agent_on(tree, clock, directory=str(system), aggregator=url, **given):
        clock.seconds = 100.0
        wait_until(lambda: not os.path.exists(rank.path) and read(str(system)))
    for command in (["report"], ["report", "r1"], ["top", "r1", "--once"]):
        status, _, wrong = called(capsys, *command)
        assert status == 1 and "no run" in wrong and "secret" not in wrong
        assert re.search(
            rf"the agent removed pages of r1 at \S+ \S+, after .*: goodput top r1 --url {aggregator.url}/?",
            wrong,
        ), wrong
    stepped(system, attempt=2)
    status, out, wrong = called(capsys, "report", "--json")
    assert (status, json.loads(out)["run"]) == (0, "r1")
    assert "some processes are missing above; the agent removed pages of r1" in wrong


def test_removed_pages_without_an_aggregator_are_gone(folders, capsys, tree, clock):
    system, _ = folders
    stepped(system)
    (tree / "proc" / str(PID) / "stat").unlink()
    agent = agent_on(tree, clock, directory=str(system), grace_seconds=1.0)
    for clock.seconds in (10.0, 100.0):
        agent.poll()
    assert (
        "no aggregator has them (goodput node --aggregator), so they are gone" in called(capsys, "report")[2]
    )
    assert "removed pages" not in called(capsys, "report", "r9")[2]


def test_record_of_removed_pages_is_bounded_and_kept(tmp_path):
    RemovedPages(str(tmp_path)).add(["first"], 1, "")
    RemovedPages(str(tmp_path)).add([f"r{n}" for n in range(RUNS_MAX - 1)], 2, "http://a" + "x" * 999)
    found = read(str(tmp_path))
    assert [*found][:2] == ["first", "r0"] and len(found) == RUNS_MAX and found["first"] == (1, "")
    RemovedPages(str(tmp_path)).add(["more"], 3, "")
    found = read(str(tmp_path))
    assert next(iter(found)) == "r0" and [*found][-1] == "more" and len(found) == RUNS_MAX
    assert os.listdir(tmp_path) == [removed_pages.NAME]
    assert os.path.getsize(tmp_path / removed_pages.NAME) <= removed_pages.BYTES_MAX


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"[1]",
        b"[" * 60_000,
        b'{"r1":7}',
        b'{"r1":["1",""]}',
        b'{"r1":[-1,""]}',
        b'{"r1":[1,2]}',
        b" " * 99_999,
    ],
)
def test_unusable_record_is_no_record(tmp_path, content):
    (tmp_path / removed_pages.NAME).write_bytes(content)
    assert read(str(tmp_path)) == {}


def test_foreign_record_is_not_believed(tmp_path):
    RemovedPages(str(tmp_path)).add(["r1"], 1, "http://attacker")
    if os.geteuid() == 0:
        os.chown(tmp_path / removed_pages.NAME, 3_999_999_999, -1)
        assert read(str(tmp_path)) == {}
    os.rename(tmp_path / removed_pages.NAME, tmp_path / "other")
    os.symlink("other", tmp_path / removed_pages.NAME)
    assert read(str(tmp_path)) == {}


def test_names_of_many_bytes_fit_the_record(tmp_path):
    RemovedPages(str(tmp_path)).add([f"{n}".ljust(255, "\U0001f600") for n in range(RUNS_MAX)], 1, "u" * 255)
    assert len(read(str(tmp_path))) == RUNS_MAX
