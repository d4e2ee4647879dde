"""Stacks of hanging ranks: runs `py-spy dump` on a process when the aggregator requests it, if that is enabled.

Requests come from the network: only processes for which `owns` is true (living ranks of this node) are dumped, and
none for which `refusal` has a reason, before the dump or after it (the page of another user may name a process). One
child process at a time, in a thread of its own and killed after `seconds_max`; at most QUEUE_MAX requests wait; one
process is dumped at most once in `again_seconds`. The text is printable, at most STACK_CHARS_MAX long and without the
command line, which may contain secrets; an error's text takes its place. The process is not paused (`--nonblocking`)
and its variables are not read. A dump takes about 0.3 s of one core.

    stacks = Stacks(ranks.owns, refusal=ranks.refusal); stacks.request(ack.wanted); ...; stacks.acknowledge(stacks.pending())
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress

from goodput.rank_page.process_owner import ENDED
from goodput.stack_samples.py_spy import find_py_spy
from goodput.wire import schema

QUEUE_MAX = 8
KNOWN_MAX = 256
ERROR_CHARS_MAX = 2000
TAKEN, FAILED, IGNORED, REFUSED = "taken", "failed", "ignored", "refused"


class Stacks:
    """`owns` returns whether a process is a living rank of this node, with the same pid and start time."""

    def __init__(
        self,
        owns: Callable[[schema.StackRequest], bool],
        *,
        refusal: Callable[[schema.StackRequest], str] = lambda process: "",
        command: str | None = None,
        seconds_max: float = 20.0,
        again_seconds: float = 60.0,
        monotonic: Callable[[], float] = time.monotonic,
        unix_ns: Callable[[], int] = time.time_ns,
    ):
        self._owns, self._refusal, self._command = owns, refusal, command
        self._seconds_max, self._again_seconds = seconds_max, again_seconds
        self._monotonic, self._unix_ns = monotonic, unix_ns
        self._changed = threading.Condition()  # around all below
        self._queue: deque[schema.StackRequest] = deque()
        self._begun: dict[schema.StackRequest, float] = {}  # oldest first
        self._waiting: dict[schema.StackRequest, schema.Stack] = {}
        self._outcomes = Counter({TAKEN: 0, FAILED: 0, IGNORED: 0, REFUSED: 0})
        self._child: subprocess.Popen | None = None
        self._stopping = False
        self._thread: threading.Thread | None = None

    # -- called by the pusher

    def request(self, processes: list[schema.StackRequest]) -> None:
        """Queue dumps. Processes that are no rank of this node are counted; recently dumped ones are skipped."""
        for process in processes[: schema.STACK_REQUESTS_MAX]:
            is_ours, now = self._owns(process), self._monotonic()
            with self._changed:
                is_recent = now - self._begun.get(process, -math.inf) < self._again_seconds
                if not is_ours:
                    self._outcomes[IGNORED] += 1
                elif not is_recent and len(self._queue) < QUEUE_MAX and not self._stopping:
                    self._begun.pop(process, None)
                    self._begun[process] = now
                    while len(self._begun) > KNOWN_MAX:
                        del self._begun[next(iter(self._begun))]
                    self._queue.append(process)
                    if self._thread is None:
                        self._thread = threading.Thread(target=self._run, name="stacks", daemon=True)
                        self._thread.start()
                    self._changed.notify()

    def pending(self) -> list[schema.Stack]:
        with self._changed:
            return list(self._waiting.values())[: schema.STACKS_MAX]

    def acknowledge(self, stacks: list[schema.Stack]) -> None:
        """Forget stacks that the aggregator has; a newer one of the same process is kept."""
        with self._changed:
            for stack in stacks:
                if self._waiting.get(stack.of) is stack:
                    del self._waiting[stack.of]

    def collect(self, families) -> None:
        families.add_counts("goodput_node_stacks_total", "outcome", self._outcomes)

    def stop(self) -> None:
        """Kill the child process, if there is one, without waiting for it."""
        with self._changed:
            self._stopping = True
            self._queue.clear()
            if self._child is not None:
                _kill(self._child)
            self._changed.notify()

    # -- the thread

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._stopping)
                if self._stopping:
                    return
                process = self._queue.popleft()
            # Meanwhile it may have ended and its pid been reused.
            is_ours = self._owns(process)
            outcome, text = self._dump_own(process) if is_ours else (FAILED, f"py-spy: {ENDED}")
            with self._changed:
                self._outcomes[outcome] += 1
                self._waiting[process] = schema.Stack(process, self._unix_ns(), text)
                while len(self._waiting) > schema.STACKS_MAX:
                    del self._waiting[next(iter(self._waiting))]

    def _dump_own(self, process: schema.StackRequest) -> tuple[str, str]:
        """Outcome and text; none of a process of which it is not sure that it was the page's all the time."""
        refusal, outcome, text = self._refusal(process), REFUSED, ""
        if not refusal:
            outcome, text = self._dump(process.pid)
            refusal = self._refusal(process)
        if not refusal:
            return outcome, text
        return FAILED if refusal == ENDED else REFUSED, f"py-spy: {refusal}"

    def _dump(self, pid: int) -> tuple[str, str]:
        """Outcome and text of one `py-spy dump`."""
        command = self._command or find_py_spy()
        if command is None:
            return FAILED, "py-spy: not installed on this node; pip install 'goodput-telemetry[stacks]'"
        call = [command, "dump", "--pid", str(pid), "--nonblocking"]
        try:
            child = subprocess.Popen(
                call, cwd="/", start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
        except OSError as error:
            return FAILED, f"py-spy: cannot run: {error.strerror}"
        overdue = threading.Event()
        late = threading.Timer(self._seconds_max, lambda: (overdue.set(), _kill(child)))
        late.daemon = True
        with self._changed:
            self._child = child
            if self._stopping:
                _kill(child)
        try:
            late.start()
            output = _read(child)
            code = child.wait()
        finally:
            late.cancel()
            with self._changed:
                self._child = None
        text = printable(output)
        if not code:
            return TAKEN, without_command(text) or "py-spy: the process has no Python stack"
        if overdue.is_set():
            return FAILED, f"py-spy: no stack within {self._seconds_max:g} s"
        return FAILED, f"py-spy: {text.strip()[:ERROR_CHARS_MAX] or f'exit status {code}'}"


def printable(output: bytes) -> str:
    """At most STACK_CHARS_MAX characters; unprintable ones become question marks."""
    text = output[: schema.STACK_CHARS_MAX].decode("utf-8", "ignore").expandtabs(4)[: schema.STACK_CHARS_MAX]
    return "".join(letter if letter == "\n" or letter.isprintable() else "?" for letter in text)


def without_command(text: str) -> str:
    """The stack, with its first line `Process 42: python train.py --token …` cut after the number."""
    first, newline, rest = text.partition("\n")
    if first.startswith("Process "):
        first = first.partition(":")[0]
    return (first + newline + rest).rstrip()


def _read(child: subprocess.Popen) -> bytes:
    """The child's output; beyond the bound it is read and dropped, so that the child can end."""
    assert child.stdout is not None  # It was started with a pipe.
    kept = bytearray()
    while chunk := child.stdout.read(1 << 16):
        kept += chunk[: max(schema.STACK_CHARS_MAX - len(kept), 0)]
    child.stdout.close()
    return bytes(kept)


def _kill(child: subprocess.Popen) -> None:
    """Kill the child and its descendants, unless it was reaped: then its pid may be reused."""
    if child.returncode is not None:
        return
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
