"""Other users of the node, for tests of what one may do to another: they run as root and give up their rights."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from collections.abc import Callable

import pytest

ATTACKER, VICTIM = 54_321, 54_322

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may act as another user")


def start_as(uid: int, act: Callable[[], object], directory=".") -> int:
    """The pid of a fork that does this as another user in a directory and ends; status 0 unless something raised."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        os.chdir(directory)  # As root: the folders above may be closed to others.
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
        act()
        status = 0
    except BaseException:
        traceback.print_exc()
    os._exit(status)


def run_as(uid: int, act: Callable[[], object], directory=".") -> None:
    _, status = os.waitpid(start_as(uid, act, directory), 0)
    assert status == 0, "failed as another user"


def sleeper_of(uid: int) -> subprocess.Popen:
    """A Python process of another user that waits until it is killed."""
    script = f"import os, time; os.setuid({uid}); print('ready', flush=True); time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process
