"""Keeps the resident memory of the aggregator below a bound (`goodput serve --memory`).

Where it is approached, free memory is given back to the system, then what can leave memory does, such as runs that have
not reported for the longest time; a request that would still exceed it is refused before it takes any.

Of freed arrays the pages return to the system. Of freed Python objects they hardly ever do, but later objects use them;
so where little is in use, nothing more leaves as long as there is room for arrays too.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

from goodput.access.responses import Refusal

log = logging.getLogger("goodput.aggregator")
# Of the bound: above RELIEVED memory is freed until FREED is resident, or IN_USE is in use; a request may reach ADMITTED.
FREED, RELIEVED, ADMITTED = 0.8, 0.85, 0.95
IN_USE = 0.65
# A request that may take more of what there is without any run is too large.
REQUEST_SHARE = 0.25
# Of Python's small objects: on average they have 90.
OBJECT_BYTES = 80
# A query of the past may hold so much of it.
QUERY_SHARE = 1 / 16
# Resident memory is read so often; where nothing could leave, that is tried again after RETRIED_SECONDS.
CHECKED_SECONDS, RETRIED_SECONDS = 0.1, 1.0
LOGGED_EVERY_SECONDS = 3600.0
# Of the limit of the control group: the rest is for the kernel's buffers and caches of files, which count there.
CGROUP_SHARE = 0.8
# What an aggregator needs beside what it takes without any run.
LEAST_ROOM_BYTES = 48 << 20
# Limits of version 1 without one are this large.
_NO_LIMIT_BYTES = 1 << 60


# Frees memory until `is_enough()`, which is not needed by a way that is quick; returns how many things were freed.
Way = Callable[[Callable[[], bool]], Awaitable[int]]


class TooSmall(ValueError):
    """A bound in which the aggregator cannot work."""


class MemoryBound:
    """`bytes_max` is None for no bound. `ways` of freeing memory are tried in their order."""

    def __init__(
        self,
        bytes_max: int | None = None,
        resident: Callable[[], int] | None = None,
        trim: Callable[[], None] | None = None,
    ):
        self.bytes_max = bytes_max
        self.ways: dict[str, Way] = {}
        self.freed: Counter[str] = Counter()  # by way
        self._reserved = 0
        self._trim = trim or give_back_free_memory
        self._not_before = -LOGGED_EVERY_SECONDS
        self._logged: dict[str, float] = {}
        self._relieving: asyncio.Future[bool] | None = None
        self.resident = resident or (ResidentMemory() if bytes_max is not None else lambda: 0)
        self._least = self.resident()
        self._objects_most = sys.getallocatedblocks()
        if bytes_max is not None and ADMITTED * bytes_max < self._least + LEAST_ROOM_BYTES:
            least = (self._least + LEAST_ROOM_BYTES) / ADMITTED
            raise TooSmall(
                f"{mebibytes(bytes_max)} of memory is too little: the aggregator takes {mebibytes(self._least)} before it "
                f"has any run; it needs {mebibytes(least)} at least"
            )

    async def run(self) -> None:
        """Free memory whenever it is approached, until cancelled."""
        while self.bytes_max is not None:
            await asyncio.sleep(CHECKED_SECONDS)
            try:
                await self._relieve()
            except Exception:
                log.exception("freeing memory failed")

    def has_room(self) -> bool:
        """Whether more may be taken into memory that need not be there, such as a run at start-up."""
        if self.bytes_max is None or self.resident() < FREED * self.bytes_max:
            return True
        self._trim()
        return self.resident() < FREED * self.bytes_max

    def rows_held(self, row_bytes: int, most: int) -> int:
        """How many rows, at most `most`, a query of the past may hold."""
        return most if self.bytes_max is None else min(int(QUERY_SHARE * self.bytes_max) // row_bytes, most)

    def request_bytes_max(self) -> int:
        """What one request may take."""
        if self.bytes_max is None:
            return sys.maxsize
        return int(REQUEST_SHARE * (ADMITTED * self.bytes_max - self._least))

    def reservation(self) -> Reservation:
        return Reservation(self)

    async def reserve(self, more: int, what: str) -> None:
        """Note that a request is about to take so many bytes. Raises Refusal; then nothing is noted."""
        if self.bytes_max is not None and not self._fits(more):
            most = self.request_bytes_max()
            if more > most:
                raise Refusal(
                    "large", f"{what} may take {mebibytes(more)} of memory, of which one may take {mebibytes(most)}; send "
                    "it in parts"
                )  # fmt: skip
            await self._relieve(more)
            if not self._fits(more):
                self._warn("refused", f"memory is full: {what} was refused, as others may be now")
                left = max(int(ADMITTED * self.bytes_max) - self.resident() - self._reserved, 0)
                raise Refusal(
                    "memory", f"{what} may take {mebibytes(more)}, but of {mebibytes(self.bytes_max)} of memory "
                    f"{mebibytes(left)} are left; send it again later"
                )  # fmt: skip
        self._reserved += more

    def reserve_at_once(self, more: int) -> bool:
        """Whether so much fits without freeing any memory; then it is noted."""
        if (
            self.bytes_max is not None
            and self.resident() + self._reserved + more >= RELIEVED * self.bytes_max
        ):
            return False
        self._reserved += more
        return True

    def release(self, count: int) -> None:
        self._reserved -= count

    def _fits(self, more: int) -> bool:
        assert self.bytes_max is not None
        return self.resident() + self._reserved + more <= ADMITTED * self.bytes_max

    async def _relieve(self, more: int = 0) -> None:
        """Free memory if it is approached, also by what is reserved and `more`; concurrent calls share one."""
        assert self.bytes_max is not None
        if self.resident() + self._reserved + more < RELIEVED * self.bytes_max or self._is_enough(more):
            return
        if self._relieving is None:
            if time.monotonic() < self._not_before:
                return
            self._relieving = asyncio.ensure_future(self._free(more))
            self._relieving.add_done_callback(self._relieved)
        await asyncio.shield(self._relieving)

    def _relieved(self, done: asyncio.Future[bool]) -> None:
        self._relieving = None
        if done.cancelled() or done.exception() is not None or not done.result():
            # Nothing is left that could leave; soon there may be.
            self._not_before = time.monotonic() + RETRIED_SECONDS

    def _is_enough(self, more: int) -> bool:
        """Whether so much is free with `more` taken that nothing need leave memory."""
        assert self.bytes_max is not None
        taken = self.resident() + self._reserved + more
        objects = sys.getallocatedblocks()
        self._objects_most = max(objects, self._objects_most)
        in_use = taken - OBJECT_BYTES * (self._objects_most - objects)
        return taken <= FREED * self.bytes_max or (
            in_use <= IN_USE * self.bytes_max and taken <= ADMITTED * self.bytes_max
        )

    async def _free(self, more: int) -> bool:
        """Until it is enough for `more`, or nothing is left that can go; whether it is enough."""

        def is_enough() -> bool:
            self._trim()
            return self._is_enough(more)

        before, freed = self.resident(), []
        for what, free in self.ways.items():
            if is_enough():
                break
            count = await free(is_enough)
            self.freed[what] += count
            freed.append(f"{count} {what}")
        if freed and not is_enough():
            gc.unfreeze()  # Also what survived a collection before, see cli.tune_garbage_collector.
            gc.collect()
            self._trim()
        if freed:
            now = f"{mebibytes(before)} became {mebibytes(self.resident())}"
            self._warn("full", f"memory is full: freed {', '.join(freed)}; {now}")
        return self._is_enough(more)

    def _warn(self, key: str, text: str) -> None:
        """Log it once an hour."""
        now = time.monotonic()
        if now - self._logged.get(key, -LOGGED_EVERY_SECONDS) >= LOGGED_EVERY_SECONDS:
            self._logged[key] = now
            log.warning("%s (--memory %s)", text, mebibytes(self.bytes_max or 0))


class Reservation:
    """What one request is about to take of a bound.

    async def answer():
        with memory.reservation() as reservation:
            await reservation.add(len(body), "a report")
    """

    def __init__(self, bound: MemoryBound):
        self._bound, self._bytes = bound, 0

    async def add(self, more: int, what: str) -> None:
        """Raises Refusal."""
        await self._bound.reserve(more, what)
        self._bytes += more

    def fits(self, more: int) -> bool:
        """Whether so much fits without freeing any memory; then it is added."""
        if not self._bound.reserve_at_once(more):
            return False
        self._bytes += more
        return True

    def __enter__(self) -> Reservation:
        return self

    async def __aenter__(self) -> Reservation:
        return self

    async def __aexit__(self, *_) -> None:
        self.__exit__()

    def __exit__(self, *_) -> None:
        self._bound.release(self._bytes)


class ResidentMemory:
    """The resident memory of this process in bytes, when called. Raises OSError without a Linux /proc."""

    def __init__(self, path: str = "/proc/self/statm"):
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115 - for as long as the process runs
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")

    def __call__(self) -> int:
        return int(os.pread(self._file.fileno(), 128, 0).split()[1]) * self._page_bytes


def _malloc_trim() -> Callable[[int], int] | None:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):
        return None  # not glibc


_trim_heaps = _malloc_trim()


def give_back_free_memory() -> None:
    """Let glibc return free pages, which it keeps inside its heaps; 25 ms for 800 MiB of them."""
    if _trim_heaps is not None:
        _trim_heaps(0)


def mebibytes(count: float) -> str:
    return f"{count / (1 << 20):.0f} MiB"


def cgroup_limit_bytes(root: Path = Path("/")) -> int | None:
    """The least memory limit of this process's control group and those above, of either version; None for none."""
    found = []
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if not controllers:
            found += _limits(root / "sys/fs/cgroup", path, "memory.max")
        elif "memory" in controllers.split(","):
            found += _limits(root / "sys/fs/cgroup/memory", path, "memory.limit_in_bytes")
    return min(found, default=None)


def _limits(mount: Path, path: str, name: str) -> list[int]:
    """The limits of a control group and those above it. In a container the path may be the host's, and its own limit is at the mount."""
    group, found = mount / path.lstrip("/"), []
    for folder in (group, *group.parents):
        try:
            limit = int((folder / name).read_text())
        except (OSError, ValueError):
            limit = _NO_LIMIT_BYTES  # such as "max"
        if 0 < limit < _NO_LIMIT_BYTES:
            found.append(limit)
        if folder == mount:
            break
    return found
