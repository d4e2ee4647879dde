"""The agent's side of a driver's process: starts it, reads its samples, kills and replaces it when it is stuck.

In: a driver's name; frames of driver_child.py, which are treated as hostile. Out: `report()`, what the driver said
last and how it fares, and each sample to a listener as it arrives, in this driver's own thread.

Guarantee: `report`, `start` and `stop` wait for no driver (`stop` for at most a second). A process that is silent for
too long, sends what is no sample, floods or grows too large is killed and replaced, after a wait that doubles with
each time. One that cannot be killed is left where it is; with `unkillable_max` of those no other is started. A driver
that has nothing to drive is asked again once a minute, then more seldom; where a look at a few files tells that
(`absence`), no process is started. Memory and descriptors are bounded.
Costs one thread, woken once a second and by each frame. It does not know what readings mean.

    child = Child("nvml", Options(), listener=lambda sample: ...); child.start(); child.report(); child.stop()
"""

from __future__ import annotations

import logging
import os
import select
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from msgspec import structs

from goodput.wire.identity import clean_text
from goodput_exporters.gpu import sample as gpu_sample
from goodput_exporters.gpu.drivers import Options
from goodput_exporters.gpu.worker import ABSENT, FAILED, FULL_SECONDS, OPENED, SAMPLE
from goodput_exporters.gpu.worker_process import (
    DIED,
    GARBLED,
    MEMORY,
    STUCK,
    Ended,
    Frame,
    Process,
    command_of,
    environment,
)

log = logging.getLogger("goodput.node")

WAKE_SECONDS = 1.0
# While standard error is full: a driver told to log everything must not be stuck for it, nor cost much here.
WAKE_CHATTY_SECONDS = 0.05
CUE_SECONDS = 5.0
STOP_SECONDS_MAX = 1.0
# Of STOP_SECONDS_MAX: to give the driver back, then to die.
CLOSE_SECONDS_MAX = 0.4
PROBLEMS_LOGGED_MAX, PROBLEM_CHARS_MAX = 256, 1000


@dataclass(frozen=True)
class Limits:
    """When a driver's process is given up, and how soon it is replaced."""

    stuck_seconds_min: float = 5.0
    stuck_intervals: float = 5.0
    # To load a library and open all devices; without persistence mode NVIDIA's driver takes seconds for each GPU.
    open_seconds: float = 30.0
    absent_seconds: float = 60.0
    absent_seconds_max: float = 300.0
    backoff_seconds: float = 1.0
    backoff_seconds_max: float = 300.0
    # A process that has lived for so long starts the waits anew.
    steady_seconds: float = 60.0
    kill_seconds: float = 1.0
    memory_bytes_max: int = 512 << 20
    unkillable_max: int = 2
    frames_per_second_max: int = 1000

    def stuck_seconds(self, interval_seconds: float) -> float:
        return max(self.stuck_seconds_min, self.stuck_intervals * interval_seconds)


class Heard(NamedTuple):
    sample: gpu_sample.Sample
    monotonic_ns: int  # when it came


@dataclass(frozen=True)
class Report:
    """What is known of a driver at one moment.

    full, fast    the newest sample of each kind, None where there was none
    absent        it has nothing to drive, and never had
    empty         it has nothing to drive now, whatever it had
    settled       it has answered, or has been silent for too long
    up            its newest sample is no older than `limit_seconds`
    """

    name: str
    limit_seconds: float
    full: Heard | None
    fast: Heard | None
    absent: bool
    settled: bool
    up: bool
    age_seconds: float | None
    counts: dict[str, int]  # samples, dropped, problems
    restarts: dict[str, int]
    cpu_seconds: float
    memory_bytes: int
    unkillable: int
    problem: str
    empty: bool = False

    def fresh(self, now_ns: int) -> list[Heard]:
        """Samples that are young enough to be shown, newest first."""
        limits = ((self.fast, self.limit_seconds), (self.full, self.limit_seconds + FULL_SECONDS))
        heard = [one for one, limit in limits if one and (now_ns - one.monotonic_ns) / 1e9 <= limit]
        return sorted(heard, key=lambda one: -one.monotonic_ns) if self.up else []


class Child:
    """One driver, in one process after the other.

    `listener` is called with each sample in the reader's thread; what it raises is counted as a problem.
    `absence` says why there is surely nothing to drive, "" where a process has to see. It and `cue` are asked every few
    seconds while the driver has nothing to drive: when their answer changes, the driver is asked anew.
    `module` (MODULE:CLASS) and `command` are for drivers that lie elsewhere.
    """

    def __init__(
        self,
        name: str,
        options: Options | None = None,
        *,
        interval_seconds: float = 1.0,
        listener: Callable[[gpu_sample.Sample], None] | None = None,
        cue: Callable[[], object] = lambda: None,
        absence: Callable[[], str] = lambda: "",
        limits: Limits | None = None,
        module: str = "",
        command: Sequence[str] | None = None,
        kill: Callable[[Process], None] = lambda process: process.send(signal.SIGKILL),
    ):
        self.name = name
        self._interval_seconds = interval_seconds
        self._limits = limits or Limits()
        self._limit_seconds = self._limits.stuck_seconds(interval_seconds)
        self._command = command or command_of(name, options or Options(), interval_seconds, module)
        self._listener, self._cue, self._absence, self._kill = listener, cue, absence, kill
        self._lock = threading.Lock()  # around what `report` reads
        self._full: Heard | None = None
        self._fast: Heard | None = None
        self._heard_ns: int | None = None
        # The last sample of the process before, None where there was nothing to sample.
        self._due_since_ns: int | None = None
        self._absent, self._settled = False, False
        self._counts = Counter({"samples": 0, "dropped": 0, "problems": 0})
        self._restarts = Counter(dict.fromkeys((STUCK, DIED, GARBLED, MEMORY), 0))
        self._past = Counter({"cpu": 0.0, "dropped": 0})  # of processes that are over
        self._problem = ""
        self._logged: set[str] = set()
        self._process: Process | None = None
        self._unkillable: list[Process] = []
        self._waits, self._absences = 0, 0
        self._stopping = threading.Event()
        self._wake_fds: tuple[int, int] | None = None
        self._started_ns = 0
        self._thread: threading.Thread | None = None

    # -- its life, as the agent sees it

    def start(self) -> None:
        if self._thread is None:
            self._started_ns = time.monotonic_ns()
            self._wake_fds = os.pipe()
            self._thread = threading.Thread(target=self._run, name=f"driver-{self.name}", daemon=True)
            self._thread.start()

    def ask_to_stop(self) -> None:
        """Begin to stop; returns at once."""
        self._stopping.set()
        with self._lock:
            if self._wake_fds is not None:
                os.write(self._wake_fds[1], b"\0")

    def stop(self, seconds_max: float = STOP_SECONDS_MAX) -> None:
        """End the process and the thread; waits for at most `seconds_max`."""
        self.ask_to_stop()
        if self._thread is not None:
            self._thread.join(seconds_max)

    def report(self) -> Report:
        with self._lock:
            now_ns, process = time.monotonic_ns(), self._process
            age = None if self._heard_ns is None else (now_ns - self._heard_ns) / 1e9
            waited = bool(self._started_ns) and (now_ns - self._started_ns) / 1e9 > self._limit_seconds
            dropped = self._past["dropped"] + (process.dropped if process else 0)
            return Report(
                name=self.name,
                limit_seconds=self._limit_seconds,
                full=self._full,
                fast=self._fast,
                absent=self._absent and age is None,
                settled=self._settled or waited,
                up=age is not None and age <= self._limit_seconds,
                age_seconds=age,
                counts={**self._counts, "dropped": self._counts["dropped"] + dropped},
                restarts=dict(self._restarts),
                cpu_seconds=self._past["cpu"] + (process.cpu_seconds if process else 0.0),
                memory_bytes=process.memory_bytes if process else 0,
                unkillable=len(self._unkillable),
                problem=self._problem,
                empty=self._absent,
            )

    # -- its life, in the thread

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                if self._may_start():
                    start = time.monotonic()
                    why = self._absence()
                    reason = self._note_end(Ended("", why), None) if why else self._live()
                    if time.monotonic() - start > self._limits.steady_seconds:
                        self._waits = self._absences = 0
                    self._wait_for_next(reason)
                else:
                    self._sleep(WAKE_SECONDS)
        finally:
            with self._lock:
                for fd in self._wake_fds:
                    os.close(fd)
                self._wake_fds = None

    def _may_start(self) -> bool:
        alive = [process for process in self._unkillable if not process.is_over()]
        with self._lock:
            self._unkillable = alive
        return len(alive) < self._limits.unkillable_max

    def _live(self) -> str | None:
        """One process from its start to its end; the reason as in Ended, None where the agent stops."""
        process, end = None, None
        try:
            process = Process(self._command, environment())
            with self._lock:
                self._process = process
            self._attend(process)
        except Ended as ended:
            end = ended
        except Exception as error:
            end = Ended(DIED, f"cannot be run: {error!r}")
        if process is not None:
            self._part_with(process, gently=end is None or end.reason in ("", DIED))
        return None if end is None else self._note_end(end, process)

    def _attend(self, process: Process) -> None:
        """Read what it says until the agent stops. Raises Ended."""
        poll = select.poll()
        poll.register(process.out_fd, select.POLLIN)
        poll.register(self._wake_fds[0], select.POLLIN)
        limit_seconds = self._limits.open_seconds
        heard = window = time.monotonic()
        usual_seconds = min(WAKE_SECONDS, self._limit_seconds / 5)
        count, wake_seconds = 0, usual_seconds
        while not self._stopping.is_set():
            poll.poll(min(wake_seconds, max(0.0, heard + limit_seconds - time.monotonic())) * 1e3 + 1)
            wake_seconds = WAKE_CHATTY_SECONDS if process.read_lines() else usual_seconds
            frames, now = process.frames(), time.monotonic()
            for frame in frames:
                self._take(process, frame)
                heard, limit_seconds = now, self._limit_seconds
            window, count = (now, len(frames)) if now - window >= 1.0 else (window, count + len(frames))
            if count > self._limits.frames_per_second_max:
                raise Ended(GARBLED, f"over {self._limits.frames_per_second_max} frames in a second")
            if now - heard > limit_seconds:
                raise Ended(STUCK, f"silent for {limit_seconds:g} s")

    def _part_with(self, process: Process, gently: bool) -> None:
        """See that it ends, and keep what it has cost; who does not end even when killed is left."""
        stopping = self._stopping.is_set()
        if stopping:
            process.send(signal.SIGTERM)
        if not process.is_over(CLOSE_SECONDS_MAX if gently else 0.0):
            self._kill(process)
        over = process.is_over(CLOSE_SECONDS_MAX if stopping else self._limits.kill_seconds)
        process.read_lines()
        process.close()
        with self._lock:
            self._process = None
            self._past["cpu"] += process.cpu_seconds
            self._past["dropped"] += process.dropped
            if not over:
                self._unkillable.append(process)

    def _note_end(self, end: Ended, process: Process | None) -> str:
        status = "" if process is None or process.status is None else f" (exit status {process.status})"
        said = f": {process.lines[-1]}" if end.reason and process is not None and process.lines else ""
        with self._lock:
            self._settled = True
            self._absent = not end.reason
            if end.reason:
                self._restarts[end.reason] += 1
            else:
                self._due_since_ns = None
        text = f"{end.reason}, {end}{status}{said}" if end.reason else f"nothing to drive: {end}"
        self._note(text, logging.WARNING if end.reason else logging.INFO)
        return end.reason

    def _wait_for_next(self, reason: str | None) -> None:
        limits = self._limits
        if reason is None:
            return
        if reason:
            self._waits += 1
            self._sleep(
                min(limits.backoff_seconds_max, limits.backoff_seconds * 2.0 ** min(self._waits - 1, 32))
            )
            return
        self._absences += 1
        wait = min(limits.absent_seconds_max, limits.absent_seconds * 2.0 ** min(self._absences - 1, 32))
        deadline, cue = time.monotonic() + wait, (self._cue(), self._absence())
        while (left := deadline - time.monotonic()) > 0 and not self._stopping.is_set():
            self._sleep(min(CUE_SECONDS, left))
            if (self._cue(), self._absence()) != cue:
                self._absences = 0
                return

    def _sleep(self, seconds: float) -> None:
        """Until the time is over or the agent stops."""
        poll = select.poll()
        poll.register(self._wake_fds[0], select.POLLIN)
        poll.poll(seconds * 1e3)

    # -- what a process says

    def _take(self, process: Process, frame: Frame) -> None:
        """One frame. Raises Ended."""
        with self._lock:
            process.cpu_seconds = max(process.cpu_seconds, frame.cpu_seconds)
            process.dropped = max(process.dropped, frame.dropped)
            process.memory_bytes = frame.memory_bytes
        if frame.kind == SAMPLE:
            self._hear(process, frame.body)
        elif frame.kind == FAILED:
            self._note_problems([frame.body.decode("utf-8", "replace")])
        elif frame.kind == ABSENT:
            raise Ended("", clean_text(frame.body.decode("utf-8", "replace"), PROBLEM_CHARS_MAX))
        elif frame.kind != OPENED:
            raise Ended(GARBLED, f"wrote a frame of no kind: {frame.kind!r}")
        if frame.memory_bytes > self._limits.memory_bytes_max:
            raise Ended(MEMORY, f"grew over {self._limits.memory_bytes_max >> 20} MiB")

    def _hear(self, process: Process, body: bytes) -> None:
        try:
            sample = gpu_sample.decode(body)
        except gpu_sample.SampleError as error:
            raise Ended(GARBLED, str(error)) from None
        if sample.driver != self.name:
            sample = structs.replace(sample, driver=self.name)
        with self._lock:
            now_ns = time.monotonic_ns()
            if not process.samples and self._due_since_ns is not None:
                missed = int((now_ns - self._due_since_ns) / 1e9 / self._interval_seconds) - 1
                self._counts["dropped"] += max(0, missed)
            process.samples += 1
            self._counts["samples"] += 1
            self._due_since_ns = self._heard_ns = now_ns
            self._absent, self._settled = False, True
            if sample.full:
                self._full = Heard(sample, now_ns)
            else:
                self._fast = Heard(sample, now_ns)
        self._note_problems(sample.problems)
        if self._listener is not None:
            try:
                self._listener(sample)
            except Exception as error:
                self._note_problems([f"listener: {error!r}"])

    def _note_problems(self, problems: list[str]) -> None:
        if problems:
            with self._lock:
                self._counts["problems"] += len(problems)
            for problem in problems:
                self._note(problem, logging.WARNING)

    def _note(self, problem: str, level: int) -> None:
        """Keep it as the last; each distinct one is logged once."""
        problem = clean_text(problem, PROBLEM_CHARS_MAX)
        with self._lock:
            self._problem = problem
        if problem not in self._logged and len(self._logged) < PROBLEMS_LOGGED_MAX:
            self._logged.add(problem)
            log.log(level, "driver %s: %s", self.name, problem)
