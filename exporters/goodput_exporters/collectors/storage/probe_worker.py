"""Calls statvfs on paths in a separate process, since a dead server blocks the call forever.

Started by filesystem_probe.py, as a file that imports only the standard library. Each path has a thread, so that one
that hangs delays no other. Writes one line per answer: the index of the path, then `seconds unit blocks available
inodes free major minor`, or `error errno`.

    python -I -S probe_worker.py /data /checkpoints
"""

import _thread
import os
import sys
import time


def probe(path: str) -> str:
    start_ns = time.monotonic_ns()
    try:
        found = os.statvfs(path)
        device = os.stat(path).st_dev
    except OSError as error:
        return f"error {error.errno}"
    except ValueError:
        return "error 22"
    seconds = (time.monotonic_ns() - start_ns) / 1e9
    sizes = found.f_frsize, found.f_blocks, found.f_bavail, found.f_files, found.f_ffree
    return " ".join(map(str, (seconds, *sizes, os.major(device), os.minor(device))))


def run(number: int, path: str, done) -> None:
    try:
        os.write(1, f"{number} {probe(path)}\n".encode())
    finally:
        done.release()


def main(paths: list[str]) -> None:
    locks = []
    for number, path in enumerate(paths):
        done = _thread.allocate_lock()
        done.acquire()
        locks.append(done)
        _thread.start_new_thread(run, (number, path, done))
    for done in locks:
        done.acquire()


if __name__ == "__main__":
    main(sys.argv[1:])
