"""The control for bounds of time: how long threads waited for a core."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from support.core_wait import CoreWait


def test_threads_that_end_subtract_nothing():
    """One that has waited beside another process on its core, and is gone when the wait is read."""
    core, has_waited, may_end = min(os.sched_getaffinity(0)), threading.Event(), threading.Event()

    def wait_for_a_core():
        os.sched_setaffinity(0, {core})  # Of this thread alone.
        end = time.monotonic() + 60
        while int(Path("/proc/thread-self/schedstat").read_text().split()[1]) < 5_000_000:
            assert time.monotonic() < end
        has_waited.set()
        may_end.wait(60)

    thread = threading.Thread(target=wait_for_a_core)
    other = subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"])
    try:
        os.sched_setaffinity(other.pid, {core})
        in_all = CoreWait()
        thread.start()
        assert has_waited.wait(60)
        assert in_all.seconds() >= 0.005
        since = CoreWait()
        may_end.set()
        thread.join(60)
        assert since.seconds() >= 0
    finally:
        other.kill()
        other.wait()
