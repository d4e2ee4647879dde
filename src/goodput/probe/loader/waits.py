"""What blocked workers wait for, sampled from the system calls that they are in (/proc/PID/syscall).

Reading it needs no privilege for a child process of the same user. Where it cannot be read, waits are "unknown".
"""

from __future__ import annotations

import contextlib
import os
import platform
import threading
from collections import Counter
from collections.abc import Iterator

from goodput.probe.loader import worker_times

SAMPLE_SECONDS = 0.008
# Numbers of system calls: Linux' arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h.
_CALLS = {
    "x86_64": {
        "lock": {73, 65, 202, 220},  # flock semop futex semtimedop
        "sleep": {35, 230},  # nanosleep clock_nanosleep
        "poll": {7, 23, 232, 270, 271, 281, 441},
        "fcntl": {72},
        "accept": {43, 288},
    },
    "aarch64": {
        "lock": {32, 98, 192, 193},
        "sleep": {101, 115},
        "poll": {22, 72, 73, 441},
        "fcntl": {25},
        "accept": {202, 242},
    },
}
_SETTING_LOCKS = {7, 38}  # F_SETLKW, F_OFD_SETLKW


def kind_of(text: str, machine: str, poll: str = "storage") -> str:
    """cpu, storage, sleep, lock, accept or unknown, from a line of /proc/PID/syscall.

    "running" is a thread that runs or waits for a core; "-1 SP PC" one blocked outside of system calls, which is in a
    page fault; else the first word is the call, the next are its arguments. All calls but the few that lock or sleep
    wait for a file or the network; `poll` is the kind of poll and its relatives, which without a file descriptor are a
    sleep. "accept" is what the idle thread does with which PyTorch shares tensors.
    """
    words = text.split()
    calls = _CALLS.get(machine)
    if not words or calls is None:
        return "unknown"
    if words[0] == "running":
        return "cpu"
    try:
        call, arguments = int(words[0]), [int(word, 16) for word in words[1:4]]
    except ValueError:
        return "unknown"
    if call in calls["lock"] or (call in calls["fcntl"] and arguments[1] in _SETTING_LOCKS):
        return "lock"
    if call in calls["sleep"] or (call in calls["poll"] and not any(arguments[:2])):
        return "sleep"
    if call in calls["poll"]:
        return poll
    return "accept" if call in calls["accept"] else "storage"


class Waits:
    """Samples the workers of one loader in a thread while the context lasts.

    `counts[place][kind]` are samples by `worker_times.PLACES` and by `kind_of`, or "threads" for a main thread that
    waits for others of its process which run. OUTSIDE of these places kinds are "cpu", of any thread, and "idle".
    """

    def __init__(self, slots: memoryview, workers: int):
        self._slots = slots[: workers * worker_times.FIELDS]
        self._machine = platform.machine()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.counts = {place: Counter() for place in (*worker_times.PLACES, worker_times.OUTSIDE)}

    def __enter__(self) -> Waits:
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._end.wait(SAMPLE_SECONDS):
            for at in range(0, len(self._slots), worker_times.FIELDS):
                pid, place = self._slots[at], self._slots[at + worker_times.PLACE]
                if place:
                    self.counts[worker_times.PLACES[place - 1]][self._kind(pid)] += 1
                elif pid:
                    runs = "cpu" in (self._kind_of(pid), *self._others(pid))
                    self.counts[worker_times.OUTSIDE]["cpu" if runs else "idle"] += 1

    def _kind(self, pid: int) -> str:
        """Of the process; where its main thread waits for a lock, what its other threads do may be what it waits for."""
        kind = self._kind_of(pid)
        if kind != "lock":
            return kind
        others = set(self._others(pid))
        return "threads" if "cpu" in others else "storage" if "storage" in others else "lock"

    def _kind_of(self, pid: int) -> str:
        return kind_of(_read(f"/proc/{pid}/syscall"), self._machine)

    def _others(self, pid: int) -> Iterator[str]:
        """Of the process's other threads."""
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                if int(thread) != pid:
                    yield kind_of(_read(f"/proc/{pid}/task/{thread}/syscall"), self._machine)


def _read(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(256).decode(errors="replace")
    except OSError:
        return ""
