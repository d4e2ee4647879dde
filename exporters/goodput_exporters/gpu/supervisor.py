"""Supervises one GPU driver: runs its worker process, receives its samples, and replaces the process when it fails.

`status`, `start` and `stop` never wait for the driver (`stop` for at most a second). A process that is silent for
too long, sends malformed output, floods or grows too large is killed and replaced, after a wait that doubles each
time. One that cannot be killed is left; with `unkillable_max` of those no other is started. A driver with nothing to
sample is tried again after a minute, then less often; while `absence` gives a reason, no process is started. Either wait
ends where `trigger`, `absence` or `is_reachable` tells that the reason is gone.
Costs one thread, which wakes for each frame and every WAKE_SECONDS without one.

    supervisor = DriverSupervisor("nvml", on_sample=print); supervisor.start(); supervisor.status(); supervisor.stop()
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
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from msgspec import structs

from goodput.wire.identity import clean_text
from goodput_exporters.gpu.drivers import DRIVERS, Options
from goodput_exporters.gpu.plausible import LIMITS
from goodput_exporters.gpu.sample import Sample, SampleError, decode
from goodput_exporters.gpu.worker import ABSENT, FAILED, FULL_SECONDS, OPENED, SAMPLE, STATUS_FAILED
from goodput_exporters.gpu.worker_process import (
    DIED,
    GARBLED,
    MEMORY,
    STUCK,
    Frame,
    WorkerEnded,
    WorkerProcess,
    worker_command,
)

log = logging.getLogger("goodput.node")

# Longer than the interval between samples, so that these usually wake it.
WAKE_SECONDS = 1.25
# While stderr is full: a driver that logs everything must not get stuck on it, nor cost much here.
WAKE_STDERR_SECONDS = 0.05
TRIGGER_SECONDS = 5.0
STOP_SECONDS_MAX = 1.0
# Part of STOP_SECONDS_MAX: to release the driver, then to end.
CLOSE_SECONDS_MAX = 0.4
PROBLEMS_LOGGED_MAX, PROBLEM_CHARS_MAX = 256, 1000


@dataclass(frozen=True)
class Limits:
    """When a worker process is given up, and how soon it is replaced."""

    stuck_seconds_min: float = 5.0
    stuck_intervals: float = 5.0
    # To load a library and open all devices; without persistence mode NVIDIA's driver takes seconds for each GPU.
    open_seconds: float = 30.0
    absent_seconds: float = 60.0
    absent_seconds_max: float = 300.0
    backoff_seconds: float = 1.0
    backoff_seconds_max: float = 300.0
    # A process that lived this long resets both waits.
    steady_seconds: float = 60.0
    kill_seconds: float = 1.0
    memory_bytes_max: int = 512 << 20
    unkillable_max: int = 2
    frames_per_second_max: int = 1000


class Received(NamedTuple):
    sample: Sample
    monotonic_ns: int  # when it arrived


@dataclass
class DriverStatus:
    """A driver at one moment.

    full, fast    the newest sample of each kind, None where there was none
    absent        it has nothing to sample, and never had
    empty         it has nothing to sample now
    settled       it has answered, or has been silent for too long
    up            its newest sample is at most `limit_seconds` old
    """

    name: str
    limit_seconds: float
    full: Received | None = None
    fast: Received | None = None
    absent: bool = False
    settled: bool = False
    up: bool = False
    age_seconds: float | None = None
    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("samples", "dropped", "problems"), 0)
    )
    restarts: dict[str, int] = field(default_factory=lambda: dict.fromkeys((STUCK, DIED, GARBLED, MEMORY), 0))
    cpu_seconds: float = 0.0
    memory_bytes: int = 0
    implausible: Counter[str] = field(default_factory=Counter)  # readings left out, by family
    unkillable: int = 0
    problem: str = ""
    empty: bool = False

    def fresh(self, now_ns: int) -> list[Received]:
        """Samples that are recent enough to be shown, newest first."""
        limits = ((self.fast, self.limit_seconds), (self.full, self.limit_seconds + FULL_SECONDS))
        received = [one for one, limit in limits if one and (now_ns - one.monotonic_ns) / 1e9 <= limit]
        return sorted(received, key=lambda one: -one.monotonic_ns) if self.up else []


def _last_words(process: WorkerProcess) -> str:
    """Why it ended: the failure after which it gave up, or else the last line that it wrote."""
    why = process.failure if process.status == STATUS_FAILED else ""
    return f": {why or process.lines[-1]}" if why or process.lines else ""


def doubled(seconds: float, seconds_max: float, times: int) -> float:
    """The wait after the n-th failure in a row: doubled after each."""
    return min(seconds_max, seconds * 2.0 ** min(times - 1, 32))


class DriverSupervisor:
    """Runs one driver in a sequence of worker processes.

    `on_sample` is called with each sample in this driver's thread; an exception from it counts as a problem.
    `absence` returns why there is certainly nothing to sample, "" where a process has to find out. `is_reachable` returns
    whether what the driver connects to accepts connections. They and `trigger` are called every TRIGGER_SECONDS while no
    process runs; a changed result, or that it accepts connections again, starts one at once.
    `module` (MODULE:CLASS) and `command` are for drivers outside this package.
    """

    def __init__(
        self,
        name: str,
        options: Options,
        *,
        on_sample: Callable[[Sample], None] | None = None,
        trigger: Callable[[], object] = lambda: None,
        absence: Callable[[], str] = lambda: "",
        is_reachable: Callable[[], bool] = lambda: True,
        limits: Limits | None = None,
        module: str = "",
        command: Sequence[str] | None = None,
        kill: Callable[[WorkerProcess], None] = lambda process: process.send_signal(signal.SIGKILL),
    ):
        self.name = name
        self._interval_seconds = options.interval_seconds
        self._limits = limits = limits or Limits()
        self._limit_seconds = max(limits.stuck_seconds_min, limits.stuck_intervals * options.interval_seconds)
        self._command = command or worker_command(module or DRIVERS[name], options)
        self._on_sample, self._kill = on_sample, kill
        self._trigger, self._absence, self._is_reachable = trigger, absence, is_reachable
        self._lock = threading.Lock()  # guards what `status` reads
        self._status = DriverStatus(name, self._limit_seconds)  # `cpu_seconds` of processes that have ended
        self._received_ns: int | None = None
        # When the last sample arrived, for counting those missed since; None where there was nothing to sample.
        self._expected_since_ns: int | None = None
        self._logged: set[str] = set()
        self._process: WorkerProcess | None = None
        self._unkillable: list[WorkerProcess] = []
        self._failures, self._absences = 0, 0  # in a row
        self._stopping = threading.Event()
        self._wake_fd = -1  # an eventfd, while the thread runs
        self._started_ns = 0
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._thread is None:
            self._started_ns = time.monotonic_ns()
            self._wake_fd = os.eventfd(0)
            self._thread = threading.Thread(target=self._run, name=f"driver-{self.name}", daemon=True)
            self._thread.start()

    def begin_stop(self) -> None:
        """Ask the thread to stop; returns at once."""
        self._stopping.set()
        with self._lock:
            if self._wake_fd >= 0:
                os.eventfd_write(self._wake_fd, 1)

    def stop(self, seconds_max: float = STOP_SECONDS_MAX) -> None:
        """End the process and the thread; waits for at most `seconds_max`."""
        self.begin_stop()
        if self._thread is not None:
            self._thread.join(seconds_max)

    def status(self) -> DriverStatus:
        with self._lock:
            now_ns, process = time.monotonic_ns(), self._process
            age = None if self._received_ns is None else (now_ns - self._received_ns) / 1e9
            waited = bool(self._started_ns) and (now_ns - self._started_ns) / 1e9 > self._limit_seconds
            known = self._status
            return replace(
                known,
                absent=known.empty and age is None,
                settled=known.settled or waited,
                up=age is not None and age <= self._limit_seconds,
                age_seconds=age,
                counts={
                    **known.counts,
                    "dropped": known.counts["dropped"] + (process.dropped if process else 0),
                },
                implausible=known.implausible.copy(),
                restarts=dict(known.restarts),
                cpu_seconds=known.cpu_seconds + (process.cpu_seconds if process else 0.0),
                memory_bytes=process.memory_bytes if process else 0,
                unkillable=len(self._unkillable),
            )

    # -- the supervisor's thread

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                if self._may_start():
                    start, was_reachable = time.monotonic(), self._is_reachable()
                    why = self._absence()
                    reason = self._note_end(WorkerEnded("", why), None) if why else self._run_process()
                    if time.monotonic() - start > self._limits.steady_seconds:
                        self._failures = self._absences = 0
                    self._wait_for_next(reason, was_reachable)
                else:
                    self._stopping.wait(WAKE_SECONDS)
        finally:
            with self._lock:
                os.close(self._wake_fd)
                self._wake_fd = -1

    def _may_start(self) -> bool:
        alive = [process for process in self._unkillable if not process.wait()]
        with self._lock:
            self._unkillable = alive
        return len(alive) < self._limits.unkillable_max

    def _run_process(self) -> str | None:
        """Run one process to its end; returns the reason as in WorkerEnded, None where the agent stops."""
        process, end = None, None
        try:
            process = WorkerProcess(self._command)
            with self._lock:
                self._process = process
            self._receive(process)
        except WorkerEnded as ended:
            end = ended
        except Exception as error:
            end = WorkerEnded(DIED, f"cannot be run: {error!r}")
        if process is not None:
            self._end_process(process, gently=end is None or end.reason in ("", DIED))
        return None if end is None else self._note_end(end, process)

    def _receive(self, process: WorkerProcess) -> None:
        """Receive frames until the agent stops. Raises WorkerEnded."""
        poll = select.poll()
        poll.register(process.out_fd, select.POLLIN)
        poll.register(self._wake_fd, select.POLLIN)
        limit_seconds = self._limits.open_seconds
        received = window = time.monotonic()
        usual_seconds = min(WAKE_SECONDS, self._limit_seconds / 4)
        count, wake_seconds = 0, usual_seconds
        while not self._stopping.is_set():
            poll.poll(min(wake_seconds, max(0.0, received + limit_seconds - time.monotonic())) * 1e3 + 1)
            wake_seconds = WAKE_STDERR_SECONDS if process.read_stderr() else usual_seconds
            frames, now = process.frames(), time.monotonic()
            for frame in frames:
                self._handle(process, frame)
                received, limit_seconds = now, self._limit_seconds
            window, count = (now, len(frames)) if now - window >= 1.0 else (window, count + len(frames))
            if count > self._limits.frames_per_second_max:
                raise WorkerEnded(GARBLED, f"over {self._limits.frames_per_second_max} frames in a second")
            if now - received > limit_seconds:
                raise WorkerEnded(STUCK, f"silent for {limit_seconds:g} s")

    def _end_process(self, process: WorkerProcess, gently: bool) -> None:
        """End the process and keep what it has used; one that does not end when killed is left."""
        stopping = self._stopping.is_set()
        if stopping:
            process.send_signal(signal.SIGTERM)
        if not process.wait(CLOSE_SECONDS_MAX if gently else 0.0):
            self._kill(process)
        ended = process.wait(CLOSE_SECONDS_MAX if stopping else self._limits.kill_seconds)
        process.read_stderr()
        process.close()
        with self._lock:
            self._process = None
            self._status.cpu_seconds += process.cpu_seconds
            self._status.counts["dropped"] += process.dropped
            if not ended:
                self._unkillable.append(process)

    def _note_end(self, end: WorkerEnded, process: WorkerProcess | None) -> str:
        status = "" if process is None or process.status is None else f" (exit status {process.status})"
        last = _last_words(process) if process is not None and end.reason else ""
        with self._lock:
            self._status.settled, self._status.empty = True, not end.reason
            if end.reason:
                self._status.restarts[end.reason] += 1
            else:
                self._expected_since_ns = None
        text = f"{end.reason}, {end}{status}{last}" if end.reason else f"nothing to sample: {end}"
        self._note(text, logging.WARNING if end.reason else logging.INFO)
        return end.reason

    def _wait_for_next(self, reason: str | None, was_reachable: bool) -> None:
        """Wait until the next process is to be started; `was_reachable` is of the moment the last one was started."""
        limits = self._limits
        if reason is None:
            return
        if reason:
            self._failures += 1
            seconds = doubled(limits.backoff_seconds, limits.backoff_seconds_max, self._failures)
        else:
            self._absences += 1
            seconds = doubled(limits.absent_seconds, limits.absent_seconds_max, self._absences)
        deadline, before = time.monotonic() + seconds, (self._trigger(), self._absence())
        was_reachable = was_reachable and self._is_reachable()
        while (left := deadline - time.monotonic()) > 0 and not self._stopping.is_set():
            self._stopping.wait(min(TRIGGER_SECONDS, left))
            is_back = not was_reachable and self._is_reachable()
            if is_back or (self._trigger(), self._absence()) != before:
                self._failures = self._absences = 0
                return

    def _handle(self, process: WorkerProcess, frame: Frame) -> None:
        """Raises WorkerEnded."""
        if frame.kind == SAMPLE:
            self._handle_sample(process, frame.body)
        elif frame.kind == FAILED:
            process.failure = frame.body.decode("utf-8", "replace")
            self._note_problems([process.failure])
        elif frame.kind == ABSENT:
            raise WorkerEnded("", clean_text(frame.body.decode("utf-8", "replace"), PROBLEM_CHARS_MAX))
        elif frame.kind != OPENED:
            raise WorkerEnded(GARBLED, f"wrote a frame of unknown kind {frame.kind!r}")
        if process.memory_bytes > self._limits.memory_bytes_max:
            raise WorkerEnded(MEMORY, f"grew over {self._limits.memory_bytes_max >> 20} MiB")

    def _handle_sample(self, process: WorkerProcess, body: bytes) -> None:
        try:
            sample = decode(body)
        except SampleError as error:
            raise WorkerEnded(GARBLED, str(error)) from None
        if sample.driver != self.name:
            sample = structs.replace(sample, driver=self.name)
        with self._lock:
            now_ns = time.monotonic_ns()
            if not process.samples and self._expected_since_ns is not None:
                missed = int((now_ns - self._expected_since_ns) / 1e9 / self._interval_seconds) - 1
                self._status.counts["dropped"] += max(0, missed)
            process.samples += 1
            self._status.counts["samples"] += 1
            for family in LIMITS.keys() & sample.implausible.keys():
                self._status.implausible[family] += sample.implausible[family]
            self._expected_since_ns = self._received_ns = now_ns
            self._status.empty, self._status.settled = False, True
            setattr(self._status, "full" if sample.full else "fast", Received(sample, now_ns))
        self._note_problems(sample.problems)
        if self._on_sample is not None:
            try:
                self._on_sample(sample)
            except Exception as error:
                self._note_problems([f"listener: {error!r}"])

    def _note_problems(self, problems: list[str]) -> None:
        if problems:
            with self._lock:
                self._status.counts["problems"] += len(problems)
            for problem in problems:
                self._note(problem, logging.WARNING)

    def _note(self, problem: str, level: int) -> None:
        """Keep as the latest problem; each distinct one is logged once."""
        problem = clean_text(problem, PROBLEM_CHARS_MAX)
        with self._lock:
            self._status.problem = problem
        if problem not in self._logged and len(self._logged) < PROBLEMS_LOGGED_MAX:
            self._logged.add(problem)
            log.log(level, "driver %s: %s", self.name, problem)
