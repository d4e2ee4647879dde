"""`goodput analyze` of one trace in a process of its own, beside the training.

In: an open file, the trace. Out: the document, when the child is done. Nothing here waits: `poll` asks, `end` kills. The
child has the lowest priority, a session of its own, none of the trainer's files or settings, and bounds on its CPU time
and memory that hold also where the trainer dies first. Its output is in memory; no file is left behind by either.
It does not know what is traced.

    child = Analysis(file.fileno())
    done = child.poll()                # None while it works, else (bytes, ns of CPU time); raises ValueError
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from time import monotonic_ns, sleep

SECONDS_MAX = CPU_SECONDS_MAX = 300
RESULT_BYTES_MAX = 4 << 20
MEMORY_BYTES_MAX = 2 << 30
_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TMPDIR")
# Isolated: neither PYTHONPATH nor the working directory say what is imported.
_PROGRAM = (
    "import sys; sys.path.append(sys.argv.pop(1)); from goodput.cli import main; sys.exit(main(sys.argv[1:]))"
)
_ROOT = os.path.abspath(__file__).rsplit(os.sep, 4)[0]
_REAPS_MAX = 50


class Analysis:
    """One child process. Raises OSError where none can be started."""

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
                env=child_environment(environ),
                start_new_session=True,
            )
        except BaseException:
            os.close(self._output)
            raise
        self._bound()

    def _bound(self) -> None:
        """Of the lowest priority, and bounded."""
        pid = self.child.pid
        bounds = ((resource.RLIMIT_CPU, CPU_SECONDS_MAX), (resource.RLIMIT_AS, MEMORY_BYTES_MAX))
        try:
            os.setpriority(os.PRIO_PROCESS, pid, 19)
            for what, most in bounds:
                resource.prlimit(pid, what, (most, most))
        except (OSError, ValueError):
            pass  # It has ended already, or that is not allowed here; `poll` bounds its time.

    def poll(self) -> tuple[bytes, int] | None:
        """None while it works, else its output and CPU time. Raises ValueError where it failed or took too long."""
        reaped = self._reap()
        if reaped is None:
            if monotonic_ns() - self.began_ns > SECONDS_MAX * 10**9 and not self.late:
                self.late = True
                os.kill(self.child.pid, 9)
            return None
        status, cpu_ns = reaped
        try:
            if self.late:
                raise ValueError(f"the analysis took longer than {SECONDS_MAX} s")
            if os.fstat(self._output).st_size > RESULT_BYTES_MAX:
                raise ValueError("the analysis says too much")
            raw = os.pread(self._output, RESULT_BYTES_MAX, 0)
        finally:
            self._close()
        if not raw:
            raise ValueError(f"the analysis ended with status {status} and says nothing")
        return raw, cpu_ns

    def _reap(self) -> tuple[int, int] | None:
        """(exit status, ns of CPU time) if it has ended, without waiting."""
        try:
            pid, status, used = os.wait4(self.child.pid, os.WNOHANG)
        except ChildProcessError:  # Somebody who waits for any child has it.
            self.child.returncode = 0
            return 0, 0
        if pid == 0:
            return None
        self.child.returncode = os.waitstatus_to_exitcode(status)
        return self.child.returncode, round(1e9 * (used.ru_utime + used.ru_stime))

    def end(self) -> None:
        """Kill it, if it is ours and works."""
        if self.owner != os.getpid():
            self.child.returncode = 0  # After a fork it is the parent's.
        elif self.child.returncode is None and self._reap() is None:
            os.kill(self.child.pid, 9)
            for _ in range(_REAPS_MAX):  # It dies at once; where it cannot, nobody waits for it.
                if self._reap() is not None:
                    break
                sleep(0.001)
            else:
                self.child.returncode = -9
        self._close()

    def _close(self) -> None:
        if self._output >= 0:
            os.close(self._output)
            self._output = -1


def command() -> list[str]:
    if not sys.executable:
        raise OSError("sys.executable is not known")
    return [sys.executable, "-I", "-c", _PROGRAM, _ROOT, "analyze", "--json", "/proc/self/fd/0"]


def child_environment(environ) -> dict[str, str]:
    """Nothing that would make the child measure itself or seem a rank."""
    return {**{name: environ[name] for name in _KEPT if name in environ}, "GOODPUT_DISABLE": "1"}
