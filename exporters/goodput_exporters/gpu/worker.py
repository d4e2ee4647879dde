"""The worker process of one GPU driver: takes a sample every interval and writes it to its original stdout.

Writes frames (a HEADER and a body each). Exit status: 0 the parent is gone, 1 the driver failed, 3 there is nothing
to sample. Whatever a library prints goes to stderr. The kernel kills the process when the parent ends, even while a
call into the driver hangs. It runs at a lower priority than trainers.

Cost besides the driver's own, with 8 GPUs of 50 readings: 0.11 % of a core at 1 Hz, 0.8 % at 10 Hz, 17 MiB
resident, and 0.09 s of CPU to start.

    python -m goodput_exporters.gpu.worker goodput_exporters.gpu.nvml.driver:Nvml '{"interval_seconds": 1.0}'
"""

from __future__ import annotations

import fcntl
import math
import os
import resource
import select
import signal
import struct
import sys
import time

import msgspec

from goodput_exporters.collector import NoData
from goodput_exporters.gpu.drivers import Driver, Options, load
from goodput_exporters.gpu.plausible import plausible_part
from goodput_exporters.gpu.sample import encode, valid_part

MAGIC = b"gp"
# Magic, kind, length of the body, then what the process has used: CPU seconds, resident bytes, samples dropped.
HEADER = struct.Struct("!2scIdQQ")
OPENED, SAMPLE, ABSENT, FAILED = b"o", b"s", b"n", b"f"
FULL_SECONDS = 5.0
# After this many failed samples in a row the driver is opened again, in a new process, if that may help it (`Driver`).
FAILURES_MAX = 5
STATUS_FAILED, STATUS_ABSENT = 1, 3
NICENESS = 5
TEXT_BYTES_MAX = 1000
# Linux; the fcntl module of Python 3.10 has no name for it.
_F_SETSIG = 10


class Pipe:
    """Writes frames to the original stdout; from now on stdout is stderr."""

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
        """Write one frame. Raises OSError where the reader is gone."""
        usage = (time.process_time(), self._resident_bytes(), self.dropped)
        rest = memoryview(HEADER.pack(MAGIC, kind, len(body), *usage) + body)
        while rest:
            rest = rest[os.write(self._fd, rest) :]

    def send_text(self, kind: bytes, text: str) -> None:
        self.send(kind, text.encode("utf-8", "replace")[:TEXT_BYTES_MAX])

    def _resident_bytes(self) -> int:
        if self._statm_fd < 0:
            return 0
        return int(os.pread(self._statm_fd, 128, 0).split()[1]) * self._page_bytes


def main(path: str, options: bytes | str) -> int:
    """Run the driver at MODULE:CLASS with JSON options until the parent is gone; returns the exit status."""
    settings = msgspec.json.decode(options, type=Options)
    pipe = Pipe()
    lower_priority()
    end_with_parent()
    driver = None
    try:
        driver = load(path)(settings)
        driver.open()
        pipe.send(OPENED)
        return run(driver, pipe, settings.interval_seconds)
    except NoData as reason:
        pipe.send_text(ABSENT, str(reason))
        return STATUS_ABSENT
    except Exception as error:
        pipe.send_text(FAILED, describe(error))
        return STATUS_FAILED
    finally:
        try:
            if driver is not None:
                driver.close()
        except Exception as error:
            print(f"close: {describe(error)}", file=sys.stderr)


def lower_priority() -> None:
    """Yield to trainers, and write no core files for a driver that crashes repeatedly."""
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))


def end_with_parent() -> None:
    """Let the kernel kill this process when the last writer of its stdin is gone.

    Not PR_SET_PDEATHSIG, which fires when the *thread* ends that started the process; and a thread that waits for the
    end of stdin does not run while a library holds the interpreter's lock.
    """
    try:
        fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(0, _F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)
    except OSError:
        return  # `run` notices the end of stdin between two samples.


def run(driver: Driver, pipe: Pipe, interval_seconds: float) -> int:
    """Take a sample every interval and a full one every FULL_SECONDS; missed samples are counted."""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    tick, full_tick, failures = 0, 0, 0
    full_ticks = max(1, round(FULL_SECONDS / interval_seconds))
    start = time.monotonic()
    while True:
        full = tick >= full_tick
        if full:
            full_tick = tick + full_ticks
        failures = 0 if send_sample(driver, pipe, full) else failures + 1
        if failures >= FAILURES_MAX and getattr(driver, "is_reopened", True):
            return STATUS_FAILED
        elapsed = time.monotonic() - start
        late = max(0, math.floor(elapsed / interval_seconds) - tick)
        tick += late + 1
        pipe.dropped += late
        if poll.poll(max(0.0, tick * interval_seconds - elapsed) * 1e3):
            return 0


def send_sample(driver: Driver, pipe: Pipe, full: bool) -> bool:
    """Take and send one sample; False where the driver raised. Raises NoData where the device is gone."""
    try:
        body = encode(plausible_part(valid_part(driver.sample(full))))
    except NoData:
        raise
    except Exception as error:
        pipe.send_text(FAILED, describe(error))
        return False
    pipe.send(SAMPLE, body)
    return True


def describe(error: Exception) -> str:
    return f"{error}" or type(error).__name__


def main_and_exit() -> None:
    """Run `main`, then exit without waiting for a library's threads and exit handlers."""
    status = STATUS_FAILED
    try:
        status = main(*sys.argv[1:])
    except SystemExit as exit_:
        status = exit_.code if isinstance(exit_.code, int) else STATUS_FAILED
    except OSError as error:
        print(f"the parent is gone: {error}", file=sys.stderr)
    finally:
        try:
            sys.stderr.flush()
        finally:
            os._exit(status)


if __name__ == "__main__":
    main_and_exit()
