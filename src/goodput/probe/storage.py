"""Bytes and files a second of the file system at a path, past the page cache where the file system allows.

Files of its own are written into a temporary folder at the path, so that each node reads the same, and removed. A path
that cannot be written to is measured by the files that it has.
"""

from __future__ import annotations

import errno
import mmap
import os
import random
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

from goodput.account.text import milliseconds
from goodput.probe.figure import Figure, rate_of

LARGE_BYTES = 128 << 20
BLOCK_BYTES = 8 << 20
SMALL_BYTES = 64 << 10
SMALL_FILES = 256
READERS = 8
SEARCHED_MAX = 20_000
# A file system that is slow is measured by as much as it reads in this time.
SECONDS_MAX = 5.0


def measure(path: str) -> list[Figure]:
    """Raises OSError if the path can be neither written nor read, and ValueError if it has too little to read."""
    folder = Path(path)
    try:
        with tempfile.TemporaryDirectory(prefix=".goodput-probe-", dir=folder) as temporary:
            return _of_own_files(Path(temporary))
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EROFS, errno.EPERM):
            raise
    return _of_files_there(folder)


def _of_own_files(folder: Path) -> list[Figure]:
    block = random.Random(0).randbytes(1 << 20)
    start = time.monotonic()
    large = folder / "large"
    written = _write(large, block, LARGE_BYTES)
    found = [Figure("storage_write", written / (time.monotonic() - start), "B/s", note="with fsync")]
    small = [folder / f"small-{number}" for number in range(SMALL_FILES)]
    for path in small:
        _write(path, block[:SMALL_BYTES], SMALL_BYTES)
    return [*found, sequential(large), *small_files(small)]


def _of_files_there(folder: Path) -> list[Figure]:
    """Of the largest file below a folder, and of files up to a megabyte."""
    paths = [path for path in islice(folder.rglob("*"), SEARCHED_MAX) if path.is_file()]
    sizes = {path: path.stat().st_size for path in paths}
    large = max(sizes, key=sizes.__getitem__, default=None)
    small = [path for path, size in sizes.items() if 0 < size <= 1 << 20]
    if large is None or (sizes[large] < BLOCK_BYTES and len(small) < READERS):
        raise ValueError(f"{folder} cannot be written to and has no file of {BLOCK_BYTES >> 20} MiB to read")
    found = [sequential(large)] if sizes[large] >= BLOCK_BYTES else []
    random.Random(0).shuffle(small)
    return [*found, *(small_files(small[:SMALL_FILES]) if len(small) >= READERS else [])]


def _write(path: Path, block: bytes, size: int) -> int:
    """Write about `size` bytes, fewer if it takes too long, and have them on the disk. Returns how many."""
    end = time.monotonic() + SECONDS_MAX
    with open(path, "wb", buffering=0) as file:
        written = 0
        while written < size and (written < BLOCK_BYTES or time.monotonic() < end):
            written += file.write(block)
        os.fsync(file.fileno())
    return written


def sequential(path: Path) -> Figure:
    """One reader of one file, in blocks of 8 MiB."""
    buffer = mmap.mmap(-1, BLOCK_BYTES)
    descriptor, cache = _open(path)
    seconds, at, end = [], 0, time.monotonic() + SECONDS_MAX
    try:
        while time.monotonic() < end or not seconds:
            start = time.perf_counter()
            if os.preadv(descriptor, [buffer], at) < BLOCK_BYTES:
                break
            seconds.append(time.perf_counter() - start)
            at += BLOCK_BYTES
    finally:
        os.close(descriptor)
    if not seconds:
        raise ValueError(f"{path} is shorter than {BLOCK_BYTES >> 20} MiB")
    # Of the whole file: a read that waited belongs to it.
    _, spread = rate_of(BLOCK_BYTES, seconds)
    return Figure("storage_read", BLOCK_BYTES * len(seconds) / sum(seconds), "B/s", spread=spread, note=cache)


def small_files(paths: list[Path]) -> list[Figure]:
    """Files a second that are opened and read whole, by one reader and by READERS at a time, in random order."""
    order = random.Random(1).sample(paths, len(paths))
    found = []
    for readers in (1, READERS):
        with ThreadPoolExecutor(readers) as pool:
            start = time.monotonic()
            results = list(pool.map(_read_share, [(order[n::readers], start) for n in range(readers)]))
        seconds = time.monotonic() - start
        rate = sum(count for count, _, _ in results) / seconds
        middle = statistics.median(latency for _, latencies, _ in results for latency in latencies)
        name = "small_files" if readers == 1 else f"small_files_{readers}_readers"
        found.append(Figure(name, rate, "1/s", note=f"{results[0][2]}, {milliseconds(middle)} a file"))
    return found


def _read_share(share: tuple[list[Path], float]) -> tuple[int, list[float], str]:
    """Files read, seconds of each, and how the page cache was avoided."""
    buffer = mmap.mmap(-1, 1 << 20)
    latencies, cache = [], ""
    paths, begin = share
    for path in paths:
        start = time.perf_counter()
        descriptor, cache = _open(path)
        try:
            os.preadv(descriptor, [buffer], 0)
        finally:
            os.close(descriptor)
        latencies.append(time.perf_counter() - start)
        if time.monotonic() - begin > SECONDS_MAX:
            break
    return len(latencies), latencies, cache


def _open(path: Path) -> tuple[int, str]:
    """A descriptor, and "page cache bypassed" or, where the file system has no O_DIRECT, "page cache dropped"."""
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECT), "page cache bypassed"
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    descriptor = os.open(path, os.O_RDONLY)
    # Written back before, so that all pages can go. Some file systems, such as tmpfs, are a page cache.
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    return descriptor, "page cache dropped"
