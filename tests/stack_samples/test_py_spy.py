"""Recording one process: the call of py-spy, reasons where there are no stacks, its cost, and its end."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading

import pytest

from goodput.stack_samples import py_spy
from goodput.stack_samples.py_spy import Recorder, may_read


@pytest.fixture
def fake_py_spy(tmp_path):
    """`fake_py_spy(body)` is the path of a program that runs this Python instead."""

    def make(body: str) -> str:
        path = tmp_path / "py-spy"
        path.write_text(f"#!{sys.executable} -S\nimport os, signal, sys, time\n{body}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return str(path)

    return make


def test_reason_is_given_where_nothing_was_recorded(fake_py_spy, tmp_path):
    own = os.getpid()
    assert Recorder(fake_py_spy("sys.exit('no Python')")).record(own)[:2] == ("", "py-spy: no Python")
    assert Recorder(fake_py_spy("sys.exit('Permission Denied')")).record(own).reason == py_spy.NOT_READABLE
    assert Recorder(fake_py_spy("pass")).record(own).reason == "py-spy: exit status 0"
    assert Recorder(str(tmp_path / "none")).record(own).reason == "py-spy: No such file or directory"
    assert Recorder(None).record(own).reason == py_spy.NOT_INSTALLED
    assert Recorder("py-spy").record(0).reason == py_spy.NOT_SEEN


def test_process_that_may_not_be_read_is_left_alone(fake_py_spy, monkeypatch):
    """py-spy is not started at all; a process that has ended cannot be read either."""
    monkeypatch.setattr(py_spy, "may_read", lambda pid: False)
    assert Recorder(fake_py_spy("sys.exit('started')")).record(os.getpid()) == ("", py_spy.NOT_PERMITTED, 0.0)


def test_permission_is_that_of_the_kernel():
    child = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert may_read(os.getpid())
        readable = subprocess.run(
            ["setpriv", "--reuid=65534", "--clear-groups", "cat", f"/proc/{child.pid}/environ"],
            capture_output=True,
        )
        assert may_read(child.pid) or readable.returncode
    finally:
        child.communicate(b"\n")
    assert not may_read(child.pid)


def test_stacks_are_recorded_without_a_pause(fake_py_spy):
    body = "sum(range(3_000_000)); open(sys.argv[-1], 'w').write(' '.join(sys.argv[1:]))"
    found = Recorder(fake_py_spy(body)).record(os.getpid())
    assert "--nonblocking" in found.raw and f"--pid {os.getpid()} " in found.raw and not found.reason
    assert found.cpu_seconds > 0


def test_stop_ends_a_recording(fake_py_spy):
    recorder = Recorder(fake_py_spy("open('/dev/null').close(); signal.pause()"))
    found = []
    thread = threading.Thread(target=lambda: found.append(recorder.record(os.getpid())))
    thread.start()
    while recorder._child is None and thread.is_alive():
        thread.join(0.01)
    recorder.stop()
    thread.join(60)
    assert [one.reason for one in found] == ["py-spy: exit status -9"]
    assert recorder.record(os.getpid()).reason == "py-spy: stopped"
