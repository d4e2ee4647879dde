"""AMD's libamd_smi.so through ctypes: where it is, which of its versions are known, and calls into it.

Structures and numbers are those of amdsmi.h. They change between releases, so that only versions whose header was read
are used; of another version nothing is called but amdsmi_get_lib_version. A structure is read up to the last field that
all of them have in one place, from a buffer that is much larger than any of them.

    library = open_library(os.environ)            # raises SmiError
    library.init(); (handle, *_) = library.handles().values(); library.number("amdsmi_get_gpu_memory_total", handle, 0)
"""

from __future__ import annotations

import ctypes
import glob
import os
import struct
from collections.abc import Mapping, Sequence
from typing import Any

NAME = "libamd_smi.so"
ROCM_FOLDERS = ("/opt/rocm", "/opt/rocm-*")
# By (major, minor) of the header; ROCm 6.2, 6.3, 6.4, 7.0 and 7.1. Numbers before 25.3 began with a year.
KNOWN = ((24, 6), (24, 7), (25, 1), (25, 3), (25, 4), (25, 5), (26, 0), (26, 1), (26, 2))
BUFFER_BYTES = 1 << 16
SOCKETS_MAX, PROCESSORS_MAX = 256, 256
AMD_GPUS = 1 << 1  # amdsmi_init_flags_t
# amdsmi_status_t
SUCCESS = 0
NOT_SUPPORTED, NOT_IMPLEMENTED, NO_PERMISSION, NO_DATA, NOT_FOUND, FILE_NOT_FOUND = 2, 3, 10, 40, 31, 52
STATUSES = {
    1: "invalid parameters",
    NOT_SUPPORTED: "not supported",
    NOT_IMPLEMENTED: "not implemented",
    6: "libdrm failed",
    7: "failed",
    8: "timed out",
    NO_PERMISSION: "permission denied",
    12: "I/O error",
    16: "internal exception",
    18: "initialization failed",
    30: "busy",
    NOT_FOUND: "not found",
    32: "not initialized",
    34: "driver not loaded",
    NO_DATA: "no data",
    43: "unexpected data",
    FILE_NOT_FOUND: "file not found",
}


class SmiError(Exception):
    """The library, or a call into it, cannot be used. `status` is an amdsmi_status_t, -1 where there was no call."""

    def __init__(self, text: str, status: int = -1):
        super().__init__(text)
        self.status = status


class SmiLibrary:
    """Calls into the library at `path`. Every method raises SmiError. Not thread-safe."""

    def __init__(self, path: str):
        try:
            self._functions = ctypes.CDLL(path)
        except OSError as error:
            raise SmiError(str(error)) from None
        self._buffer = ctypes.create_string_buffer(BUFFER_BYTES)
        self.path = path
        self.version = self._version()
        if self.version not in KNOWN:
            known = f"{'.'.join(map(str, KNOWN[0]))} to {'.'.join(map(str, KNOWN[-1]))}"
            raise SmiError(f"{path} has the version {'.'.join(map(str, self.version))}; known are {known}")

    def call(self, function: str, *arguments: Any) -> None:
        """Integers are passed as 64 bits, which is right for shorter ones too on x86-64 and ARM64."""
        try:
            found = getattr(self._functions, function)
        except AttributeError:
            raise SmiError(f"{function} is not in {self.path}", NOT_SUPPORTED) from None
        found.restype = ctypes.c_uint32
        passed = [ctypes.c_uint64(one) if isinstance(one, int) else one for one in arguments]
        status = found(*passed)
        if status != SUCCESS:
            raise SmiError(f"{function}: {STATUSES.get(status, f'status {status}')}", status)

    def read(self, function: str, *arguments: Any, bytes_used: int) -> bytes:
        """What the function writes to its last argument, a structure."""
        ctypes.memset(self._buffer, 0, bytes_used)
        self.call(function, *arguments, self._buffer)
        return self._buffer.raw[:bytes_used]

    def number(self, function: str, *arguments: Any) -> int:
        """The uint64_t that the function writes to its last argument."""
        return int.from_bytes(self.read(function, *arguments, bytes_used=8), "little")

    def init(self) -> None:
        self.call("amdsmi_init", AMD_GPUS)

    def handles(self) -> dict[str, int]:
        """The GPUs' handles by PCI address, such as 0000:1b:00.0."""
        found = {}
        for sock in self._handles("amdsmi_get_socket_handles", SOCKETS_MAX):
            for handle in self._handles("amdsmi_get_processor_handles", PROCESSORS_MAX, sock):
                found[address(self.number("amdsmi_get_gpu_device_bdf", handle))] = handle
        return found

    def _handles(self, function: str, most: int, *arguments: Any) -> Sequence[int]:
        count = ctypes.c_uint32(0)
        self.call(function, *arguments, ctypes.byref(count), None)
        count.value = min(count.value, most)
        handles = (ctypes.c_void_p * most)()
        if count.value:
            self.call(function, *arguments, ctypes.byref(count), handles)
        return [handle for handle in handles[: min(count.value, most)] if handle]

    def _version(self) -> tuple[int, int]:
        """(major, minor). The structure began with a year until 26.0, and until 24.7 the year was the first number."""
        first, second, third = struct.unpack("3I", self.read("amdsmi_get_lib_version", bytes_used=12))
        if first >= 26:
            return first, second
        return (second, third) if second >= 25 else (first, second)


def address(bdf: int) -> str:
    """The PCI address of an amdsmi_bdf_t: 3 bits of function, 5 of device, 8 of bus, 48 of domain."""
    return f"{bdf >> 16:04x}:{bdf >> 8 & 0xFF:02x}:{bdf >> 3 & 0x1F:02x}.{bdf & 7:x}"


def open_library(environ: Mapping[str, str]) -> SmiLibrary:
    """The library that ROCM_PATH or ROCM_HOME names, the dynamic loader finds, or ROCm installed; the newest of several.

    Raises SmiError, where there is none with a text that says so.
    """
    declared = [environ[name] for name in ("ROCM_PATH", "ROCM_HOME") if environ.get(name)]
    installed = [path for pattern in ROCM_FOLDERS for path in sorted(glob.glob(pattern), reverse=True)]
    names = [NAME, *dict.fromkeys(f"{NAME}.{major}" for major, _ in reversed(KNOWN))]
    paths = [os.path.join(folder, "lib", name) for folder in declared for name in names]
    paths += [*names, *(os.path.join(folder, "lib", name) for folder in installed for name in names)]
    why = None
    for path in paths:
        if os.path.isabs(path) and not os.path.isfile(path):
            continue
        try:
            return SmiLibrary(path)
        except SmiError as error:
            if os.path.isabs(path) or "cannot open shared object file" not in str(error):
                why = why or error
    raise why or SmiError(f"{NAME} is not installed")
