"""Aggregator and agent run under the system calls that their units allow, as the kernel filters them.

systemd itself is not needed: its groups of calls are expanded, and the same kind of filter is set before the program starts.
"""

from __future__ import annotations

import json
import platform
import re
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

import httpx
import pytest
from support.deploy.deploy_words import DEPLOY
from support.servers import servers

NUMBERS = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
ALLOW, FAIL, KILL = 0x7FFF0000, 0x00050000 | 1, 0x80000000  # of seccomp(2); 1 is EPERM
# Sets the filter of argv[1], [[code, jt, jf, k], ...], and becomes the program of the further arguments.
FILTERED = """
import ctypes, json, os, struct, sys
filter = b"".join(struct.pack("HBBI", *one) for one in json.loads(sys.argv[1]))
buffer = ctypes.create_string_buffer(filter)
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]
program = Program(len(filter) // 8, ctypes.addressof(buffer))
libc = ctypes.CDLL(None, use_errno=True)
NO_NEW_PRIVILEGES, SECCOMP, FILTER = 38, 22, 2
for call in ((NO_NEW_PRIVILEGES, 1, 0, 0, 0), (SECCOMP, FILTER, ctypes.byref(program), 0, 0)):
    if libc.prctl(*call):
        raise OSError(ctypes.get_errno(), "prctl")
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or not NUMBERS.exists(), reason="not x86-64, or no linux-libc-dev"
)


@cache
def calls_of(name: str) -> frozenset[str]:
    """The system calls of a name or a group of systemd's."""
    if not name.startswith("@"):
        return frozenset({name})
    servers.require("systemd-analyze")
    command = ["systemd-analyze", "syscall-filter", "--no-pager", name]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    members = re.findall(r"(?m)^    (@?[\w-]+)$", text)
    assert members
    return frozenset().union(*map(calls_of, members))


def allowed(unit: str) -> set[str]:
    """What the unit's lists leave: the first is of what is allowed, one that begins with ~ takes away."""
    found = set[str]()
    for line in re.findall(r"(?m)^SystemCallFilter=(.+)$", unit):
        calls = set[str]().union(*(calls_of(word) for word in line.removeprefix("~").split()))
        found = found - calls if line.startswith("~") else found | calls
    return found | calls_of("@default")


def filter_of(unit: str) -> str:
    """The filter as JSON: allow these calls; for the others do what the unit says, by default kill the process."""
    numbers = dict(re.findall(r"(?m)^#define __NR_(\w+) (\d+)$", NUMBERS.read_text()))
    load, jump_if_equal, answer = 0x20, 0x15, 0x06
    lines = [[load, 0, 0, 0]]
    for name in sorted(allowed(unit) & numbers.keys()):
        lines += [[jump_if_equal, 0, 1, int(numbers[name])], [answer, 0, 0, ALLOW]]
    lines.append([answer, 0, 0, FAIL if re.search("(?m)^SystemCallErrorNumber=EPERM$", unit) else KILL])
    return json.dumps(lines)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("goodput-aggregator.service", ["serve", "--ledger", "sqlite:///{folder}/ledger.db"]),
        ("goodput-node.service", ["node", "--directory", "{folder}"]),
    ],
)
def test_program_runs_with_the_calls_of_its_unit(name, words, tmp_path):
    (port,) = servers.free_ports(1)
    unit = (DEPLOY / "systemd" / name).read_text()
    words = [word.format(folder=tmp_path) for word in [*words, "--listen", f"127.0.0.1:{port}"]]
    command = [sys.executable, "-c", FILTERED, filter_of(unit), "-m", "goodput", *words]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        servers.wait_until(lambda: answers(process, f"http://127.0.0.1:{port}"), 60, f"{name} to answer")
    finally:
        process.terminate()
        ended = process.wait(60)
    assert ended in (0, -signal.SIGTERM), (tmp_path / "log").read_text()


def answers(process: subprocess.Popen, url: str) -> bool:
    """Whether both the check and the series are answered; AssertionError for a process that ended."""
    assert process.poll() is None, f"ended with {process.returncode}"
    try:
        return all(
            httpx.get(url + path, trust_env=False).status_code == 200 for path in ("/healthz", "/metrics")
        )
    except httpx.TransportError:
        return False


def test_filter_is_one():
    """A call that is not allowed fails, or kills where the unit says nothing of it."""
    unit = (DEPLOY / "systemd" / "goodput-aggregator.service").read_text()
    assert "mbind" not in allowed(unit) and {"read", "epoll_wait"} <= allowed(unit)
    silent = re.sub("(?m)^SystemCallErrorNumber=.*$", "", unit)
    script = "import os; os.setpriority(os.PRIO_PROCESS, 0, 5)"
    ended = [
        subprocess.run(
            [sys.executable, "-c", FILTERED, filter_of(text), "-c", script], capture_output=True, text=True
        )
        for text in (unit, silent)
    ]
    assert "PermissionError" in ended[0].stderr and ended[0].returncode == 1
    assert ended[1].returncode == -signal.SIGSYS
