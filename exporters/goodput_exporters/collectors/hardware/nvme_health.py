"""Health of NVMe controllers from their SMART log: warnings, spare blocks, wear, media errors. Needs CAP_SYS_ADMIN.

The log is an admin command, for which the kernel waits up to a minute if the controller hangs: a thread asks, every
READ_SECONDS, and a collection waits ANSWER_SECONDS_MAX for it. A controller that may not be asked has no such series.

NVM Express Base Specification 2.0, SMART / Health Information (log page 02h); NVME_IOCTL_ADMIN_CMD of linux/nvme_ioctl.h.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import stat
import struct
import threading
from collections.abc import Callable, Iterator

from goodput_exporters.system.files import CounterFiles, clean
from goodput_exporters.system.interval import Interval

READ_SECONDS, ANSWER_SECONDS_MAX = 600.0, 0.5
LOG_BYTES = 512
# The bits of the first byte.
WARNINGS = ("spare", "temperature", "reliability", "read_only", "backup", "persistent_memory")
_ADMIN_COMMAND = 0xC048_4E41
_GET_LOG_PAGE, _HEALTH, _ALL_NAMESPACES = 0x02, 0x02, 0xFFFF_FFFF
# struct nvme_passthru_cmd: opcode, namespace, address and length of the data, the command's words 10 to 15.
_COMMAND = struct.Struct("=BBHI8xQQII24xII")
_WORD_10 = struct.Struct("=I")
_WORD_10_AT = 40


class NvmeHealth:
    """`read` gives what the controllers answered last. `read_log` gets a device's path and number."""

    def __init__(
        self,
        sysfs: str,
        rootfs: str,
        monotonic_ns: Callable[[], int],
        read_log: Callable[[str, str], bytes] | None = None,
    ):
        self._sysfs, self._devices = sysfs, os.path.join(rootfs, "dev")
        self._interval = Interval(READ_SECONDS, monotonic_ns)
        self._read_log = read_log or read_health_log
        self._thread: threading.Thread | None = None
        self._values: dict[str, list[tuple]] = {}

    def read(self, controllers: list[str], files: CounterFiles) -> Iterator[tuple]:
        """(series, labels, value); `controllers` are those to ask."""
        if self._interval.is_due() and (self._thread is None or not self._thread.is_alive()):
            numbers = {
                name: files.read(f"{self._sysfs}/class/nvme/{name}/dev", clean) for name in controllers
            }
            self._thread = threading.Thread(target=self._ask, args=(numbers,), name="nvme", daemon=True)
            self._thread.start()
            self._thread.join(ANSWER_SECONDS_MAX)
        for name in controllers:
            yield from self._values.get(name, ())

    def _ask(self, numbers: dict[str, str | None]) -> None:
        for name, number in numbers.items():
            try:
                log = self._read_log(f"{self._devices}/{name}", number) if number else b""
            except OSError:
                log = b""
            self._values[name] = list(parse_health_log(name, log))


def read_health_log(path: str, number: str) -> bytes:
    """The log of the controller with this device number, as "242:0". Raises OSError."""
    data = ctypes.create_string_buffer(LOG_BYTES)
    address = ctypes.addressof(data)
    command = bytearray(_COMMAND.pack(_GET_LOG_PAGE, 0, 0, _ALL_NAMESPACES, 0, address, 0, LOG_BYTES, 0, 0))
    _WORD_10.pack_into(command, _WORD_10_AT, (LOG_BYTES // 4 - 1) << 16 | _HEALTH)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        own = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
        if not stat.S_ISCHR(status.st_mode) or own != number:
            raise OSError(f"{path}: not device {number}")
        if refused := fcntl.ioctl(descriptor, _ADMIN_COMMAND, command):
            raise OSError(f"{path}: NVMe status {refused:#x}")
    finally:
        os.close(descriptor)
    return data.raw


def parse_health_log(name: str, log: bytes) -> Iterator[tuple]:
    """(series, labels, value) of a controller's log; nothing of one that is not whole or all zero."""
    if len(log) != LOG_BYTES or not any(log):
        return
    device = {"device": name}
    for bit, warning in enumerate(WARNINGS):
        yield "goodput_host_nvme_warning", {**device, "warning": warning}, float(log[0] >> bit & 1)
    if log[3] <= 100:
        yield "goodput_host_nvme_spare_ratio", device, log[3] / 100
    yield "goodput_host_nvme_wear_ratio", device, log[5] / 100
    yield "goodput_host_nvme_media_errors_total", device, float(int.from_bytes(log[160:176], "little"))
