"""Asks file systems how full they are, in a process of its own: a dead server blocks the question for ever.

In: paths, as arguments. Out: one line on stdout for each that answers, in the order in which they do: its number,
then the seconds it took and seven figures (unit and device of the file system, sizes), or its number and an errno.
Each path has a thread, so that one that hangs keeps no other waiting. It uses the standard library alone, imports
nothing of goodput, and is started as a file by statvfs.py, which reads what it says and ends it when time is over.

    python -I -S probe_worker.py /data /checkpoints
"""

import _thread
import os
import sys
import time


def ask(path: str) -> str:
    """`seconds unit blocks available inodes free major minor`, or `error errno`."""
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


def answer(number: int, path: str, done) -> None:
    try:
        os.write(1, f"{number} {ask(path)}\n".encode())
    finally:
        done.release()


def main(paths: list[str]) -> None:
    waits = []
    for number, path in enumerate(paths):
        done = _thread.allocate_lock()
        done.acquire()
        waits.append(done)
        _thread.start_new_thread(answer, (number, path, done))
    for done in waits:
        done.acquire()


if __name__ == "__main__":
    main(sys.argv[1:])
