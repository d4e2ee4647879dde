"""py-spy on one process: where the program is, whether the process may be read, and stacks recorded for some seconds.

The process is not paused (`--nonblocking`) and its variables are not read.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from typing import NamedTuple

RATE, BURST_SECONDS, SECONDS_MAX = 25, 2, 30.0
OUTPUT_BYTES_MAX, ERROR_CHARACTERS_MAX = 4 << 20, 120
NOT_INSTALLED = "py-spy is not installed: pip install 'goodput-telemetry[stacks]'"
NOT_SEEN = "its process is in a PID namespace that the agent does not see: hostPID"
NOT_PERMITTED = "no permission to read the process: needs root, CAP_SYS_PTRACE, or its user and kernel.yama.ptrace_scope=0"
# Such as an environment in a home directory that is closed to others.
NOT_READABLE = "py-spy may not read the files of the process's Python: needs root or CAP_DAC_READ_SEARCH"


class Recording(NamedTuple):
    """Raw stacks of one burst, the reason where there are none, and the CPU time that it took."""

    raw: str
    reason: str = ""
    cpu_seconds: float = 0.0


def find_py_spy() -> str | None:
    """py-spy beside this interpreter, else on PATH."""
    beside = os.path.join(os.path.dirname(sys.executable), "py-spy")
    return beside if os.access(beside, os.X_OK) else shutil.which("py-spy")


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def may_read(pid: int) -> bool:
    """Whether the kernel lets this process read another's memory, by process_vm_readv as py-spy does.

    Address 0 is never mapped: EFAULT means that the permission was checked and given. (/proc/PID/mem would also need
    its owner's file permissions.)
    """
    byte = ctypes.create_string_buffer(1)
    local, remote = _Vector(ctypes.addressof(byte), 1), _Vector(None, 1)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.process_vm_readv(pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, ctypes.c_ulong(0))
    return ctypes.get_errno() == errno.EFAULT


class Recorder:
    """Records one process at a time. `stop` ends the child process from another thread."""

    def __init__(self, command: str | None):
        self.command = command
        self._lock = threading.Lock()  # around the child and whether to stop
        self._child: subprocess.Popen | None = None
        self.is_stopped = False

    def record(self, pid: int) -> Recording:
        """The stacks of a process, RATE times a second for BURST_SECONDS; pid 0 is unknown. Raises nothing."""
        if self.command is None:
            return Recording("", NOT_INSTALLED)
        if not pid:
            return Recording("", NOT_SEEN)
        if not may_read(pid):
            return Recording("", NOT_PERMITTED)
        try:
            with tempfile.TemporaryDirectory() as place:
                return self._run(pid, os.path.join(place, "stacks"), os.path.join(place, "errors"))
        except OSError as error:
            return Recording("", f"py-spy: {error.strerror or error}")

    def stop(self) -> None:
        with self._lock:
            self.is_stopped = True
            if self._child is not None:
                _kill(self._child)

    def _run(self, pid: int, out: str, errors: str) -> Recording:
        call = [self.command or "", "record", "--pid", str(pid), "--rate", str(RATE)]
        call += ["--duration", str(BURST_SECONDS), "--nonblocking", "--idle", "--threads", "--format", "raw"]
        with self._lock, open(errors, "wb") as stderr:
            if self.is_stopped:
                return Recording("", "py-spy: stopped")
            null = subprocess.DEVNULL
            streams = {"stdin": null, "stdout": null, "stderr": stderr}
            child = subprocess.Popen([*call, "--output", out], cwd="/", start_new_session=True, **streams)
            self._child = child
        code, cpu_seconds = self._wait(child)
        if code or not os.path.exists(out):
            text = " ".join(_head(errors, ERROR_CHARACTERS_MAX).split()) or f"exit status {code}"
            reason = NOT_READABLE if "permission denied" in text.lower() else f"py-spy: {text}"
            return Recording("", reason, cpu_seconds)
        return Recording(_head(out, OUTPUT_BYTES_MAX), "", cpu_seconds)

    def _wait(self, child: subprocess.Popen) -> tuple[int, float]:
        """Exit status and CPU time of the child, which is killed after SECONDS_MAX."""
        late = threading.Timer(SECONDS_MAX, _kill, [child])
        late.daemon = True
        late.start()
        try:
            # Only wait4 returns the CPU time of this child; Popen gets the status from here, since it did not wait itself.
            _, status, usage = os.wait4(child.pid, 0)
        finally:
            late.cancel()
        with self._lock:
            child.returncode = os.waitstatus_to_exitcode(status)
            self._child = None
        return child.returncode, usage.ru_utime + usage.ru_stime


def _kill(child: subprocess.Popen) -> None:
    """Kill the child and its descendants, unless it was reaped: then its pid may be reused."""
    if child.returncode is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)


def _head(path: str, most: int) -> str:
    with open(path, "rb") as file:
        return file.read(most).decode(errors="replace")
