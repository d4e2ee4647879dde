"""The folder of rank pages, where any user may write: a mount of its own with bounds, or the agent says that it is none."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from support.paths import PYTHONPATH

from goodput_exporters.page_directory import KINDS, problems

OPTIONS = "mode=1777,size=1m,nr_inodes=100"
CODE = """
import sys
from goodput_exporters.page_directory import problems
print(",".join(problems(sys.argv[1])))
"""
CAN_MOUNT = subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode == 0
mounting = pytest.mark.skipif(not CAN_MOUNT, reason="may not mount")


def found(folder, commands: str) -> str:
    """The kinds of problems of `folder`/pages after these commands, in a mount namespace of their own."""
    script = f"cd {folder} && {commands} && chmod 1777 {folder}/pages && exec {sys.executable} -c '{CODE}' {folder}/pages"
    command = ["unshare", "--mount", "sh", "-c", script]
    environment = os.environ | {"PYTHONPATH": PYTHONPATH}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@mounting
@pytest.mark.parametrize(
    ("commands", "kinds"),
    [
        (f"mkdir pages && mount -t tmpfs -o {OPTIONS} pages pages", ""),
        ("mkdir pages && mount -t tmpfs -o size=0,nr_inodes=0 pages pages", "size,inodes"),
        (f"mkdir run pages && mount -t tmpfs -o {OPTIONS} run run && rmdir pages && mkdir run/pages && ln -s run/pages", "mount"),
        # As a container has the host's folder.
        (f"mkdir run pages && mount -t tmpfs -o {OPTIONS} run run && mkdir run/p && mount --bind run/p pages", "mount"),
        (f"mkdir run pages && mount -t tmpfs -o {OPTIONS} run run && mount --bind run pages", ""),
    ],
)  # fmt: skip
def test_folder_that_is_no_mount_of_its_own_or_has_no_bound(tmp_path, commands, kinds):
    assert found(tmp_path, commands) == kinds


def test_folder_that_does_not_exist_has_no_problem(tmp_path):
    assert problems(str(tmp_path / "none")) == {} and problems(str(tmp_path), str(tmp_path)) == {}


def test_folder_of_its_owner_alone_has_no_problem(tmp_path):
    tmp_path.chmod(0o755)
    assert problems(str(tmp_path)) == {}
    tmp_path.chmod(0o1777)
    assert "mount" in problems(str(tmp_path))


def test_agent_tells_of_a_shared_folder(tmp_path, caplog):
    """In its log, in /healthz and as a series; it runs all the same."""
    from goodput_exporters.agent import Agent

    tmp_path.chmod(0o1777)
    with Agent(str(tmp_path), drivers=()) as agent:
        assert agent.health() is None
        assert "is not a mount of its own" in agent.warnings() and "run-goodput.mount" in agent.warnings()
        text = agent.exposition(2.0).decode()
    assert "is not a mount of its own: any user can fill" in caplog.text
    for kind in KINDS:
        assert f'goodput_node_page_directory_problem{{problem="{kind}"}} {int(kind == "mount")}' in text
