"""New lines of the kernel's log, from /dev/kmsg (Documentation/ABI/testing/dev-kmsg), without waiting.

Reading it needs CAP_SYSLOG, or kernel.dmesg_restrict=0. A poll without new lines costs 2 us.
"""

from __future__ import annotations

import contextlib
import os

READS_MAX, RECORD_BYTES_MAX = 4096, 8192


class KernelLog:
    """`problem` is why it cannot be read, "" where it can."""

    def __init__(self, path: str = "/dev/kmsg"):
        self.problem = ""
        self._fd = -1
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            # What happened before is no news.
            os.lseek(self._fd, 0, os.SEEK_END)
        except OSError as error:
            self.problem = f"{path}: {error.strerror}"

    def poll(self) -> list[str]:
        """The lines since the last poll; the oldest are missing where the kernel has overwritten them."""
        if self._fd < 0:
            return []
        lines: list[str] = []
        for _ in range(READS_MAX):
            try:
                record = os.read(self._fd, RECORD_BYTES_MAX)
            except BrokenPipeError:
                continue  # The next record has been overwritten; reading goes on after it.
            except OSError:
                break
            if not record:
                break
            lines += record.decode("utf-8", "replace").splitlines()
        return lines

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.close(fd)
