"""The stacks of ranks that hang: `py-spy dump` of a process that the aggregator asked for, when that is allowed.

In: the processes wanted (`want`), which come from the network and are believed only where `owns` says that this
very process is a living rank of this node. Out: `pending()`, stacks for the next push, kept until `settled`.

Guarantee: neither a look, a scrape nor a push ever waits for it. One child at a time in a thread of its own, ended
after `seconds_max`; at most QUEUE_MAX wait; a process is looked into at most once in `again_seconds`. At most
STACK_CHARS_MAX characters of printable text come out, without the command line of the process, which may hold
secrets. What goes wrong is the text. The process is not paused (`--nonblocking`), its variables are not read.
A dump takes about 0.3 s of one core. It does not know why a process is wanted.

    stacks = Stacks(ranks.owns); stacks.want(ack.wanted); ...; stacks.settled(stacks.pending())
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable

from goodput.wire import schema

QUEUE_MAX = 8
KNOWN_MAX = 256
COMPLAINT_CHARS_MAX = 2000
TAKEN, FAILED, IGNORED = "taken", "failed", "ignored"


class Stacks:
    """`owns` tells whether a wanted process is a living rank of this node, under the same pid and start."""

    def __init__(
        self,
        owns: Callable[[schema.StackRequest], bool],
        *,
        command: str | None = None,
        seconds_max: float = 20.0,
        again_seconds: float = 60.0,
        monotonic: Callable[[], float] = time.monotonic,
        unix_ns: Callable[[], int] = time.time_ns,
    ):
        self._owns, self._command = owns, command
        self._seconds_max, self._again_seconds = seconds_max, again_seconds
        self._monotonic, self._unix_ns = monotonic, unix_ns
        self._changed = threading.Condition()  # around all below
        self._queue: deque[schema.StackRequest] = deque()
        self._begun: dict[schema.StackRequest, float] = {}  # oldest first
        self._waiting: dict[schema.StackRequest, schema.Stack] = {}
        self._outcomes = Counter({TAKEN: 0, FAILED: 0, IGNORED: 0})
        self._child: subprocess.Popen | None = None
        self._stopping = False
        self._thread: threading.Thread | None = None

    # -- what the pusher calls

    def want(self, wanted: list[schema.StackRequest]) -> None:
        """Ask for stacks. Who is no rank of this node is ignored and counted; who was asked for lately, ignored."""
        for process in wanted[: schema.STACK_REQUESTS_MAX]:
            ours = self._owns(process)
            with self._changed:
                if not ours:
                    self._outcomes[IGNORED] += 1
                elif not self._was_lately(process) and len(self._queue) < QUEUE_MAX and not self._stopping:
                    self._begun.pop(process, None)
                    self._begun[process] = self._monotonic()
                    while len(self._begun) > KNOWN_MAX:
                        del self._begun[next(iter(self._begun))]
                    self._queue.append(process)
                    self._start()
                    self._changed.notify()

    def pending(self) -> list[schema.Stack]:
        with self._changed:
            return list(self._waiting.values())[: schema.STACKS_MAX]

    def settled(self, stacks: list[schema.Stack]) -> None:
        """These have arrived; a newer one of the same process is kept."""
        with self._changed:
            for stack in stacks:
                if self._waiting.get(stack.of) is stack:
                    del self._waiting[stack.of]

    def collect(self, families) -> None:
        for outcome, count in self._outcomes.items():
            families.add("goodput_node_stacks_total", {"outcome": outcome}, count)

    def stop(self) -> None:
        """End the child, if there is one; nobody waits for it."""
        with self._changed:
            self._stopping = True
            self._queue.clear()
            if self._child is not None:
                _kill(self._child)
            self._changed.notify()

    # -- the thread

    def _was_lately(self, process: schema.StackRequest) -> bool:
        begun = self._begun.get(process)
        return begun is not None and self._monotonic() - begun < self._again_seconds

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="stacks", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._stopping)
                if self._stopping:
                    return
                process = self._queue.popleft()
            # It may have ended while it waited, and its pid may be another's by now.
            if not self._owns(process):
                outcome, text = FAILED, "py-spy: the process has ended"
            else:
                outcome, text = self._dump(process.pid)
            with self._changed:
                self._outcomes[outcome] += 1
                self._waiting[process] = schema.Stack(process, self._unix_ns(), text)
                while len(self._waiting) > schema.STACKS_MAX:
                    del self._waiting[next(iter(self._waiting))]

    def _dump(self, pid: int) -> tuple[str, str]:
        """Outcome and text of one `py-spy dump`."""
        command = self._command or find_py_spy()
        if command is None:
            return FAILED, "py-spy: not installed on this node; pip install 'goodput-telemetry[stacks]'"
        call = [command, "dump", "--pid", str(pid), "--nonblocking"]
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        try:
            child = subprocess.Popen(call, cwd="/", start_new_session=True, **pipes)
        except OSError as error:
            return FAILED, f"py-spy: cannot be run: {error.strerror}"
        overdue = threading.Event()
        late = threading.Timer(self._seconds_max, lambda: (overdue.set(), _kill(child)))
        late.daemon = True
        with self._changed:
            self._child = child
            if self._stopping:
                _kill(child)
        try:
            late.start()
            said = _read(child)
            code = child.wait()
        finally:
            late.cancel()
            with self._changed:
                self._child = None
        if code and overdue.is_set():
            return FAILED, f"py-spy: gave no stack within {self._seconds_max:g} s"
        if code:
            return FAILED, f"py-spy: {printable(said).strip()[:COMPLAINT_CHARS_MAX] or f'exit status {code}'}"
        return TAKEN, without_command(printable(said)) or "py-spy: the process has no Python stack"


def find_py_spy() -> str | None:
    """py-spy beside this interpreter, else on PATH."""
    beside = os.path.join(os.path.dirname(sys.executable), "py-spy")
    return beside if os.access(beside, os.X_OK) else shutil.which("py-spy")


def printable(said: bytes) -> str:
    """At most STACK_CHARS_MAX characters that a report may carry; what cannot be shown is a question mark."""
    text = said[: schema.STACK_CHARS_MAX].decode("utf-8", "ignore").expandtabs(4)[: schema.STACK_CHARS_MAX]
    return "".join(letter if letter == "\n" or letter.isprintable() else "?" for letter in text)


def without_command(text: str) -> str:
    """The stack with its first line, `Process 42: python train.py --token …`, cut behind the number."""
    first, newline, rest = text.partition("\n")
    if first.startswith("Process "):
        first = first.partition(":")[0]
    return (first + newline + rest).rstrip()


def _read(child: subprocess.Popen) -> bytes:
    """What the child says, to its end; beyond the bound it is read and forgotten, so that it can end."""
    kept = bytearray()
    while chunk := child.stdout.read(1 << 16):
        kept += chunk[: max(schema.STACK_CHARS_MAX - len(kept), 0)]
    child.stdout.close()
    return bytes(kept)


def _kill(child: subprocess.Popen) -> None:
    """End the child and what it started. Once it was waited for, its pid may be another's."""
    if child.returncode is not None:
        return
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
