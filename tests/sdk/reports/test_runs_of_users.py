"""Pages of several users under one run's name, as any user may write them: each user's are a run of their own."""

import json
import os
import subprocess
import sys

import pytest
from support.node.node_rank import Rank
from support.node.node_tree import MS
from support.other_users import ATTACKER, as_root, run_as

from goodput.rank_page import page

pytestmark = as_root


def goodput(*arguments, **environ) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "goodput", *arguments]
    return subprocess.run(command, env=os.environ | environ, capture_output=True, text=True, timeout=120)


def accounts(directory, *arguments) -> dict[str, dict]:
    done = goodput("report", "--directory", str(directory), "--json", *arguments)
    assert done.returncode == 0, done.stderr
    return {one["run"]: one for one in map(json.loads, done.stdout.splitlines())}


@pytest.fixture
def pages(tmp_path):
    directory = tmp_path / "pages"
    page.make_directory(str(directory))
    return directory


def trained(directory, owner: int = 0, **given) -> None:
    rank = Rank(directory, **given)
    os.chown(rank.path, owner, -1)
    rank.many(6, {"none": MS, "forward": MS})
    rank.writer.close()


def test_empty_file_of_another_user_changes_no_account(pages):
    run_as(ATTACKER, lambda: open("JOB.0.1.page", "x").close(), str(pages))
    code = """
import goodput
goodput.start(run='JOB', rank=0, world_size=1)
for step in range(8):
    with goodput.step(), goodput.phase('forward'):
        sum(range(10_000))
"""
    environment = os.environ | {"GOODPUT_DIR": str(pages)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=60)
    account = accounts(pages)["JOB"]
    assert account["factors"]["goodput"] is not None and account["restarts"] == []
    assert [rank["steps"]["kept"] for rank in account["ranks"]] == [8]


def test_page_of_another_user_changes_no_account(pages):
    trained(pages, run="JOB", world_size=1)
    alone = accounts(pages)["JOB"]
    trained(pages, ATTACKER, run="JOB", world_size=1, attempt=2)
    both = accounts(pages)
    assert sorted(both) == ["JOB", f"JOB (user {ATTACKER})"]
    assert both["JOB"]["steps"] == alone["steps"] and both["JOB"]["restarts"] == []
    assert list(accounts(pages, "JOB")) == ["JOB"]
    top = goodput("top", "--directory", str(pages), "--json", GOODPUT_DIR=str(pages))
    assert f"JOB (user {ATTACKER})" in top.stdout, top.stderr


@pytest.mark.parametrize("name", ["A.page", "Z.page"])
def test_damaged_copy_of_a_page_changes_no_account(pages, name):
    trained(pages, run="JOB", world_size=1)
    alone = accounts(pages)["JOB"]
    damaged = bytearray((pages / "JOB.0.1.page").read_bytes())
    damaged[8 * page.W_STEPS : 8 * page.W_STEPS + 8] = bytes(8)
    (pages / name).write_bytes(damaged)
    done = goodput("report", "--directory", str(pages), "--json")
    assert json.loads(done.stdout)["steps"] == alone["steps"]
    assert f"{name}: run 'JOB' rank 0 attempt 1 is read from {pages}/JOB.0.1.page" in done.stderr
    top = goodput("top", "--directory", str(pages), "--json", GOODPUT_DIR=str(pages))
    assert f"skipped {pages / name}" in top.stdout
