"""Runs `goodput analyze` on a trace in a child process beside the training, without waiting for it.

The child has the lowest priority, a session of its own, none of the trainer's files or settings, and bounds on its
CPU time and memory that hold even if the trainer dies first. Its output is in memory; it leaves no file behind.

    child = Analysis(file.fileno())
    done = child.poll()                # None while it runs, else (output, ns of CPU time); raises ValueError
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from time import monotonic_ns

from goodput.user_exceptions import reraise_from_handler

SECONDS_MAX = CPU_SECONDS_MAX = 300
RESULT_BYTES_MAX = 4 << 20
MEMORY_BYTES_MAX = 2 << 30
REAP_SECONDS_MAX = 0.05
_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TMPDIR")
# With -I, neither PYTHONPATH nor the working directory affects what is imported.
_PROGRAM = (
    "import sys; sys.path.append(sys.argv.pop(1)); from goodput.cli import main; sys.exit(main(sys.argv[1:]))"
)
_ROOT = os.path.abspath(__file__).rsplit(os.sep, 4)[0]


class Analysis:
    """One child process. Raises OSError if none can be started."""

    def __init__(self, trace_fd: int, environ=os.environ):
        self.owner, self.began_ns, self.late = os.getpid(), monotonic_ns(), False
        self._output = os.memfd_create("goodput-look", os.MFD_CLOEXEC)
        try:
            self.child = subprocess.Popen(
                command(),
                stdin=trace_fd,
                stdout=self._output,
                stderr=subprocess.DEVNULL,
                cwd="/",
                # Nothing that would make the child measure itself or look like a rank.
                env={**{name: environ[name] for name in _KEPT if name in environ}, "GOODPUT_DISABLE": "1"},
                start_new_session=True,
            )
        except BaseException:
            os.close(self._output)
            raise
        try:
            os.setpriority(os.PRIO_PROCESS, self.child.pid, 19)
            resource.prlimit(self.child.pid, resource.RLIMIT_CPU, (CPU_SECONDS_MAX, CPU_SECONDS_MAX))
            resource.prlimit(self.child.pid, resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
        except (OSError, ValueError) as error:
            # Else it has ended already, or this is not allowed here; `poll` bounds its time.
            reraise_from_handler(error)

    def poll(self) -> tuple[bytes, int] | None:
        """None while it runs, else its output and CPU time. Raises ValueError if it failed or took too long."""
        status = cpu_ns = 0
        try:
            pid, wait_status, used = os.wait4(self.child.pid, os.WNOHANG)
            if pid == 0:
                if monotonic_ns() - self.began_ns > SECONDS_MAX * 10**9 and not self.late:
                    self.late = True
                    os.kill(self.child.pid, 9)
                return None
            status, cpu_ns = (
                os.waitstatus_to_exitcode(wait_status),
                round(1e9 * (used.ru_utime + used.ru_stime)),
            )
        except ChildProcessError:
            pass  # Reaped by code that waits for any child.
        self.child.returncode = status
        try:
            if self.late:
                raise ValueError(f"the analysis took longer than {SECONDS_MAX} s")
            if os.fstat(self._output).st_size > RESULT_BYTES_MAX:
                raise ValueError(f"the analysis printed more than {RESULT_BYTES_MAX} bytes")
            raw = os.pread(self._output, RESULT_BYTES_MAX, 0)
        finally:
            self._close()
        if not raw:
            raise ValueError(f"the analysis ended with status {status} and printed nothing")
        return raw, cpu_ns

    def end(self) -> None:
        """Kill it if it still runs. In a forked process, only forget it."""
        if self.owner != os.getpid():
            self.child.returncode = 0
        self.child.kill()
        try:
            self.child.wait(REAP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.child.returncode = -9  # It hangs in the kernel; it is not waited for.
        self._close()

    def _close(self) -> None:
        if self._output >= 0:
            os.close(self._output)
            self._output = -1


def command() -> list[str]:
    if not sys.executable:
        raise OSError("sys.executable is not known")
    return [sys.executable, "-I", "-c", _PROGRAM, _ROOT, "analyze", "--json", "/proc/self/fd/0"]
