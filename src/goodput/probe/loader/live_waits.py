"""What the workers of a running training wait for: storage or the network, or a lock, which their records do not distinguish.

The system calls that they are in are sampled from outside, as `waits` does for a probed loader; where these cannot be read
(another user's process, Yama's ptrace_scope for one's own), the kernel functions in which they sleep (/proc/PID/wchan).
Nothing in the training is stopped or changed. A worker without work polls for it, and so may one that waits for the
network: the two are distinguished by how long workers were idle meanwhile, according to their records.
"""

from __future__ import annotations

import contextlib
import os
import platform
import time
from collections import Counter
from collections.abc import Mapping, Sequence

from goodput.probe.loader import waits

SECONDS, EVERY_SECONDS = 5.0, 0.01
# Fewer samples, or batches that are made meanwhile, give no result.
SAMPLES_MIN, BATCHES_MIN = 100, 5
# Samples and records may differ by so much of the workers' time in how long these were blocked.
APART_MAX = 0.15
# So much of the blocked time may be of an unknown kind.
UNKNOWN_MAX = 0.1
# The name that PyTorch gives to its workers.
NAME = "pt_data_worker"
# Kernel functions by the beginning of their names.
_FUNCTIONS = {
    "lock": ("futex_", "do_futex", "flock_lock", "locks_lock", "fcntl_setlk", "do_semtimedop"),
    "sleep": ("hrtimer_nanosleep", "do_nanosleep", "common_nsleep"),
    "poll": ("poll_schedule_timeout", "do_sys_poll", "do_poll", "do_select", "ep_poll"),
    "storage": (
        *("folio_wait", "io_schedule", "wait_on_page", "bit_wait", "pipe_", "anon_pipe_", "wait_woken"),
        *("sk_wait", "tcp_", "unix_stream", "rpc_", "nfs", "fuse_", "request_wait_answer", "filemap_"),
    ),
}


def workers_of(pid: int, procfs: str = "/proc") -> list[int]:
    """The loaders' workers among the descendants of a process."""
    children: dict[int, list[int]] = {}
    names: dict[int, str] = {}
    with contextlib.suppress(OSError):
        for entry in filter(str.isdigit, os.listdir(procfs)):
            text = _read(f"{procfs}/{entry}/stat")
            name, _, rest = text.partition("(")[2].rpartition(")")
            fields = rest.split()
            if len(fields) > 1 and fields[1].isdigit():
                children.setdefault(int(fields[1]), []).append(int(entry))
                names[int(entry)] = name
    found, left = [], [pid]
    while left:
        below = children.pop(left.pop(), [])
        found += [one for one in below if names[one] == NAME]
        left += below
    return sorted(found)


def sampled(pids: Sequence[int], workers: int, seconds: float) -> Counter[str]:
    """How often a worker was seen in which kind of wait: those of `waits.kind_of`, "threads", and "poll".

    Of more processes than the loader has `workers` the idle ones are left out: another loader's.
    """
    counts = {pid: Counter[str]() for pid in pids}
    machine, end = platform.machine(), time.monotonic() + seconds
    while time.monotonic() < end:
        for pid, count in counts.items():
            kind = _kind(pid, machine)
            if kind:
                count[kind] += 1
        time.sleep(EVERY_SECONDS)
    return sum(sorted(counts.values(), key=lambda count: count["poll"])[:workers], Counter())


def _kind(pid: int, machine: str) -> str:
    """Of a worker, "" of one that is gone. What its other threads do may be what a main thread's lock waits for."""
    kind = _kind_of(f"/proc/{pid}", machine)
    if kind != "lock":
        return kind
    others = set()
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            if int(thread) != pid:
                others.add(_kind_of(f"/proc/{pid}/task/{thread}", machine))
    return "threads" if "cpu" in others else "storage" if "storage" in others else "lock"


def _kind_of(folder: str, machine: str) -> str:
    text = _read(f"{folder}/syscall")
    if text:
        return waits.kind_of(text, machine, poll="poll")
    state = _read(f"{folder}/stat").rpartition(")")[2].split()[:1]
    return kind_of_function(_read(f"{folder}/wchan"), state[0]) if state else ""


def kind_of_function(name: str, state: str) -> str:
    """Of a thread in this state of the scheduler, which sleeps in this function of the kernel ("0" where it is hidden)."""
    if state == "R":
        return "cpu"
    found = (kind for kind, begins in _FUNCTIONS.items() if name.startswith(begins))
    return next(found, "unknown")


def shares(
    before: Mapping[str, int], after: Mapping[str, int], counts: Counter[str]
) -> dict[str, float] | str:
    """By "storage" and "lock" the shares of the time in which workers were blocked; or why these are not known.

    `before` and `after` are a loader's figures (rank_page.loader_words) at both ends of the sampling.
    """
    grown = {name: after.get(f"worker_{name}", 0) - before.get(f"worker_{name}", 0) for name in _GROWN}
    whole, samples = grown["idle_ns"] + grown["dataset_ns"] + grown["collate_ns"], sum(counts.values())
    if samples < SAMPLES_MIN or grown["batches"] < BATCHES_MIN or whole <= 0:
        return f"{max(grown['batches'], 0)} batches were made in the {SECONDS:g} s, too few to tell"
    recorded = max(grown["dataset_ns"] - grown["cpu_ns"] - grown["delay_ns"], 0) / whole
    if grown["collate_ns"] / whole > UNKNOWN_MAX * recorded:
        return "their collate function may wait too"
    seen = {kind: count / samples for kind, count in counts.items()}
    storage = seen.get("storage", 0.0) + seen.get("sleep", 0.0)
    storage += max(seen.get("poll", 0.0) - grown["idle_ns"] / whole, 0.0)
    lock = seen.get("lock", 0.0)
    if seen.get("unknown", 0.0) > UNKNOWN_MAX * recorded:
        return "the system does not show it to this user: try as root"
    if not lock + storage or abs(lock + storage - recorded) > APART_MAX:
        return f"{lock + storage:.0%} of the samples are waits, {recorded:.0%} of the recorded time"
    return {"storage": storage / (lock + storage), "lock": lock / (lock + storage)}


_GROWN = ("batches", "idle_ns", "dataset_ns", "collate_ns", "cpu_ns", "delay_ns")


def _read(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(512).decode(errors="replace").strip()
    except OSError:
        return ""
