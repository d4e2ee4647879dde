"""The process of one GPU driver: opens it, takes a sample every interval, writes it to what was standard output.

In: a driver's name and its options on the command line; standard input, whose end is the parent's. Out: frames, a
HEADER and a body each, and exit status 0 (the parent is gone), 1 (the driver failed), 3 (there is nothing to drive).

Guarantee: whatever a library prints goes to standard error. The process is killed by the kernel when the parent
ends, even while a call into the driver hangs. It drives nothing but this driver, and gives way to trainers (nice).
Cost beside the driver's own, with 8 GPUs of 50 readings: 0.11 % of a core at 1 Hz, 0.8 % at 10 Hz, 17 MiB resident,
and 0.09 s of CPU to start.
It does not know what a stuck call is: the parent does.

    python -m goodput_exporters.gpu.worker nvml --interval 1.0 --sysfs /sys
"""

from __future__ import annotations

import argparse
import fcntl
import math
import os
import resource
import select
import signal
import struct
import sys
import time
from dataclasses import fields

from msgspec import structs

from goodput_exporters.collector import NoData
from goodput_exporters.gpu import sample as gpu_sample
from goodput_exporters.gpu.drivers import Driver, Options, load

MAGIC = b"gp"
# Magic, kind, length of the body, then what the process has cost: CPU seconds, resident bytes, samples dropped.
HEADER = struct.Struct("!2scIdQQ")
OPENED, SAMPLE, ABSENT, FAILED = b"o", b"s", b"n", b"f"
INTERVAL_SECONDS_MIN, INTERVAL_SECONDS_MAX = 0.1, 60.0
FULL_SECONDS = 5.0
# So many samples one after the other that raise: the driver is opened anew, in a new process.
FAILURES_MAX = 5
STATUS_FAILED, STATUS_ABSENT = 1, 3
NICENESS = 5
TEXT_BYTES_MAX = 1000
# Linux; the fcntl module of Python 3.10 has no name for it.
_F_SETSIG = 10


class Pipe:
    """The way to the parent: what was standard output, which from now on is standard error."""

    def __init__(self):
        self._fd = os.dup(1)
        os.dup2(2, 1)
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self.dropped = 0
        try:
            self._statm_fd = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._statm_fd = -1

    def send(self, kind: bytes, body: bytes = b"") -> None:
        """Write one frame. Raises OSError where nobody reads any more."""
        cost = (time.process_time(), self._resident_bytes(), self.dropped)
        rest = memoryview(HEADER.pack(MAGIC, kind, len(body), *cost) + body)
        while rest:
            rest = rest[os.write(self._fd, rest) :]

    def say(self, kind: bytes, text: str) -> None:
        self.send(kind, text.encode("utf-8", "replace")[:TEXT_BYTES_MAX])

    def _resident_bytes(self) -> int:
        if self._statm_fd < 0:
            return 0
        return int(os.pread(self._statm_fd, 128, 0).split()[1]) * self._page_bytes


def main(argv: list[str] | None = None) -> int:
    """Run one driver until the parent ends it or is gone; the exit status."""
    arguments = parse(argv)
    pipe = Pipe()
    give_way()
    end_with_parent()
    driver = None
    try:
        driver = load(arguments.name, arguments.module)(options_of(arguments))
        driver.open()
        pipe.send(OPENED)
        return run(driver, pipe, arguments.interval)
    except NoData as reason:
        pipe.say(ABSENT, str(reason))
        return STATUS_ABSENT
    except Exception as error:
        pipe.say(FAILED, describe(error))
        return STATUS_FAILED
    finally:
        if driver is not None:
            close(driver)


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="driver_child", description="Runs one GPU driver for the node agent."
    )
    parser.add_argument("name", help="of a module of goodput_exporters.gpu.drivers")
    parser.add_argument("--interval", metavar="SECONDS", type=interval, default=1.0)
    parser.add_argument(
        "--module", default="", help="where the driver is, if elsewhere: MODULE or MODULE:CLASS"
    )
    for field in fields(Options):
        flag = f"--{field.name.replace('_', '-')}"
        parser.add_argument(flag, type=type(field.default), default=field.default, dest=field.name)
    return parser.parse_args(argv)


def interval(text: str) -> float:
    seconds = float(text)
    if not INTERVAL_SECONDS_MIN <= seconds <= INTERVAL_SECONDS_MAX:
        raise ValueError(text)
    return seconds


def options_of(arguments: argparse.Namespace) -> Options:
    return Options(**{field.name: getattr(arguments, field.name) for field in fields(Options)})


def give_way() -> None:
    """Let trainers go first, and leave no core files of a driver that crashes again and again."""
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))


def end_with_parent() -> None:
    """Have the kernel kill this process when the last writer of its standard input is gone.

    PR_SET_PDEATHSIG would do it when the parent's *thread* ends that started the process, and a thread that waits for
    the end of input does not run while a library holds the interpreter's lock.
    """
    try:
        fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(0, _F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)
    except OSError:
        return  # Then `run` sees it, between two samples.


def run(driver: Driver, pipe: Pipe, interval_seconds: float) -> int:
    """A sample every interval, every FULL_SECONDS a full one; those that it is late for are counted."""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    tick, full_tick, failures = 0, 0, 0
    full_ticks = max(1, round(FULL_SECONDS / interval_seconds))
    start = time.monotonic()
    while True:
        full = tick >= full_tick
        if full:
            full_tick = tick + full_ticks
        failures = 0 if take(driver, pipe, full) else failures + 1
        if failures >= FAILURES_MAX:
            return STATUS_FAILED
        elapsed = time.monotonic() - start
        late = max(0, math.floor(elapsed / interval_seconds) - tick)
        tick += late + 1
        pipe.dropped += late
        if poll.poll(max(0.0, tick * interval_seconds - elapsed) * 1e3):
            return 0


def take(driver: Driver, pipe: Pipe, full: bool) -> bool:
    """Take one sample and send it; False where the driver raised. Raises NoData where the device is gone."""
    try:
        body = gpu_sample.encode(tidy(driver.sample(full)))
    except NoData:
        raise
    except Exception as error:
        pipe.say(FAILED, describe(error))
        return False
    pipe.send(SAMPLE, body)
    return True


def tidy(sample: gpu_sample.Sample) -> gpu_sample.Sample:
    """The sample without what is out of bounds; what was left out becomes a problem. Raises SampleError."""
    try:
        gpu_sample.check(sample)
        return sample
    except gpu_sample.SampleError as error:
        problem = str(error)
    gpus = [one for one in map(tidy_gpu, sample.gpus) if _is_sound(one)][: gpu_sample.GPUS_MAX]
    problems = [problem, *sample.problems][: gpu_sample.PROBLEMS_MAX]
    events = sample.events[-gpu_sample.EVENTS_MAX :]
    sample = structs.replace(sample, gpus=gpus, events=events, problems=problems)
    gpu_sample.check(sample)
    return sample


def tidy_gpu(one: gpu_sample.Gpu) -> gpu_sample.Gpu:
    sound = [(key, value) for key, value in one.readings.items() if _is_sound_reading(key, value)]
    pids = None if one.pids is None else one.pids[: gpu_sample.PROCESSES_MAX]
    return structs.replace(one, readings=dict(sound[: gpu_sample.READINGS_MAX]), pids=pids)


def _is_sound(one: gpu_sample.Gpu) -> bool:
    try:
        gpu_sample.check(gpu_sample.Sample(driver="", monotonic_ns=0, gpus=[one]))
    except gpu_sample.SampleError:
        return False
    return True


def _is_sound_reading(key: str, value: float) -> bool:
    try:
        gpu_sample.place_of(key)
    except gpu_sample.SampleError:
        return False
    return math.isfinite(value)


def describe(error: Exception) -> str:
    return f"{error}" or type(error).__name__


def close(driver: Driver) -> None:
    try:
        driver.close()
    except Exception as error:
        print(f"close: {describe(error)}", file=sys.stderr)


def end() -> None:
    """`main`, and out: threads and exit handlers of a library must not keep the process."""
    status = STATUS_FAILED
    try:
        status = main()
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else STATUS_FAILED
    except OSError as error:
        print(f"the parent is gone: {error}", file=sys.stderr)
    finally:
        try:
            sys.stderr.flush()
        finally:
            os._exit(status)


if __name__ == "__main__":
    end()
