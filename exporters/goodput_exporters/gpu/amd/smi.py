"""Readings and events of AMD GPUs from libamd_smi (smi_library.py). Needs no root; bad pages and some events do.

Never called: amdsmi_get_violation_status, which sleeps for 100 ms and has nothing that gpu_metrics lacks;
amdsmi_gpu_xgmi_error_status, which resets the status that it returns; amdsmi_get_gpu_process_list, which searches the
whole of /proc: KFD's files in sysfs have the same processes.
"""

from __future__ import annotations

import ctypes
import os
import re
import struct
from collections.abc import Mapping

from goodput_exporters.collector import CollectorError
from goodput_exporters.gpu.amd import gpu_metrics
from goodput_exporters.gpu.amd.smi_library import (
    FILE_NOT_FOUND,
    NO_DATA,
    NO_PERMISSION,
    NOT_IMPLEMENTED,
    NOT_SUPPORTED,
    SmiError,
    SmiLibrary,
    open_library,
)
from goodput_exporters.gpu.sample import Event
from goodput_exporters.system.files import read_text

# amdsmi_gpu_block_t: 1 << position. The kernel's files in sysfs have the same names.
BLOCKS = (
    *(
        "umc",
        "sdma",
        "gfx",
        "mmhub",
        "athub",
        "pcie_bif",
        "hdp",
        "xgmi_wafl",
        "df",
        "smn",
        "sem",
        "mp0",
        "mp1",
    ),
    *("fuse", "mca", "vcn", "jpeg", "ih", "mpio"),
)
# amdsmi_retired_page_record_t: address, size, status; the status by number.
_PAGE_BYTES, _PAGE_STATUSES = 24, ("retired", "pending", "unreservable")
PAGES_MAX = 4096
_XGMI_LINKS = 8
# amdsmi_evt_notification_type_t: (kind, severity, description). 5 is another event since 26.0.
EVENTS = {
    1: ("page_fault", "warning", "memory access fault on the GPU"),
    3: ("gpu_reset", "critical", "the driver resets the GPU"),
    5: ("gpu_hang", "critical", "a queue of the GPU hangs"),
}
# KFD's flag for events of all processes: without it even root gets only its own (kfd_smi_ev_enabled in
# drivers/gpu/drm/amd/amdkfd/kfd_smi_events.c of the kernel). It takes CAP_SYS_ADMIN, bit 21; a memory fault is a process's.
_ALL_PROCESSES, _SYS_ADMIN = 64, 21
EVENTS_POLLED_MAX = 64
_ABSENT = (NOT_SUPPORTED, NOT_IMPLEMENTED, NO_DATA, FILE_NOT_FOUND)


class Smi:
    """The open library. What goes wrong is appended to `problems`. Raises SmiError where it cannot be opened.

    Where not `is_admin`, memory faults of other users' processes are not seen.
    """

    def __init__(self, library: SmiLibrary, is_admin: bool = True):
        self._library = library
        self.problems: list[str] = []
        self._refused: set[str] = set()
        self._layout = gpu_metrics.AMDSMI if library.version >= (24, 7) else gpu_metrics.AMDSMI_24_6
        self._event_types = {
            kind: what for kind, what in EVENTS.items() if kind < 5 or library.version < (26, 0)
        }
        self._unsupported: set[tuple[str, str]] = set()  # (address, function)
        self._blocks: dict[str, list[int]] = {}  # positions of those with error counts, by address
        self._handles: dict[str, int] = {}  # by address
        self._watched: list[int] = []
        self._told: set[int] = set()  # those of which events come
        if not is_admin:
            self._event_types.pop(1)
            self._refused.add("events of memory faults (need CAP_SYS_ADMIN)")
        self._open()

    @property
    def source(self) -> str:
        """Which library it is, and what it refused."""
        refused = f"; refused to this user: {', '.join(sorted(self._refused))}" if self._refused else ""
        return f"amdsmi {'.'.join(map(str, self._library.version))}{refused}"

    def __contains__(self, pci: str) -> bool:
        return pci in self._handles

    def close(self) -> None:
        for handle in self._watched:
            self._ignore_errors("amdsmi_stop_gpu_event_notification", handle)
        self._handles, self._watched, self._told = {}, [], set()
        self._ignore_errors("amdsmi_shut_down")

    def reopen(self) -> None:
        """List the GPUs again; only a library that is initialized again knows those that came. Raises SmiError."""
        self.close()
        self._unsupported = set()
        self._open()

    def _open(self) -> None:
        self._library.init()
        try:
            self._handles = self._library.handles()
        except SmiError:
            self.close()
            raise
        for pci, handle in self._handles.items():
            mask = self._query(pci, "amdsmi_get_gpu_ecc_enabled", handle, bytes_used=8)
            enabled = int.from_bytes(mask or b"", "little")
            self._blocks[pci] = [position for position in range(len(BLOCKS)) if enabled >> position & 1]
            self._watch(handle)

    def model(self, pci: str) -> str:
        """The name on the market; "" where the library has none."""
        body = self._query(pci, "amdsmi_get_gpu_asic_info", self._handles[pci], bytes_used=256) or b""
        name = body.partition(b"\0")[0].decode("utf-8", "replace").strip()
        return "" if name == "N/A" else name

    def metrics(self, pci: str) -> dict:
        """The fields of gpu_metrics."""
        arguments = "amdsmi_get_gpu_metrics_info", self._handles[pci]
        body = self._query(pci, *arguments, bytes_used=gpu_metrics.size(self._layout))
        return gpu_metrics.parse(body, self._layout) if body else {}

    def readings(self, pci: str, full: bool) -> dict[str, float]:
        """Memory and, where `full`, XGMI links."""
        found = {}
        for key, function in (
            ("used", "amdsmi_get_gpu_memory_usage"),
            ("total", "amdsmi_get_gpu_memory_total"),
        ):
            body = (
                self._query(pci, function, self._handles[pci], 0, bytes_used=8)
                if full or key == "used"
                else None
            )
            if body:
                found[f"memory/{key}"] = float(int.from_bytes(body, "little"))
        return found | self._links(pci) if full else found

    def error_counts(self, pci: str) -> dict[str, dict[str, float]]:
        """Errors by block and kind; without the blocks that could not be read."""
        found = {}
        for position in self._blocks.get(pci, ()):
            function = "amdsmi_get_gpu_ecc_count"
            body = self._query(pci, function, self._handles[pci], 1 << position, bytes_used=24)
            if body:
                counts = struct.unpack("3Q", body)
                found[BLOCKS[position]] = dict(
                    zip(("correctable", "uncorrectable", "deferred"), map(float, counts), strict=True)
                )
        return found

    def bad_pages(self, pci: str) -> dict[str, float]:
        """Bad pages of memory by status."""
        function, count = "amdsmi_get_gpu_bad_page_info", ctypes.c_uint32(0)
        if (pci, function) in self._unsupported:
            return {}
        handle = self._handles[pci]
        try:
            self._library.call(function, handle, ctypes.byref(count), None)
            count.value = min(count.value, PAGES_MAX)
            records = ctypes.create_string_buffer(_PAGE_BYTES * (PAGES_MAX + 1))
            if count.value:
                self._library.call(function, handle, ctypes.byref(count), records)
        except SmiError as error:
            self._note(pci, error, function)
            return {}
        found = dict.fromkeys(_PAGE_STATUSES, 0.0)
        for at in range(min(count.value, PAGES_MAX)):
            (status,) = struct.unpack_from("I", records.raw, at * _PAGE_BYTES + 16)
            if status < len(_PAGE_STATUSES):
                found[_PAGE_STATUSES[status]] += 1
        return {f"pages_retired/{status}": number for status, number in found.items()}

    def event_kinds(self, pci: str) -> list[tuple[str, str]]:
        """(kind, severity) of the events that `events` may have of a GPU."""
        is_told = self._handles.get(pci) in self._told
        return [(kind, severity) for kind, severity, _ in self._event_types.values()] if is_told else []

    def events(self, time_ns: int, uuids: Mapping[str, str]) -> list[Event]:
        """Events since the last call; `uuids` by address. Never waits."""
        found: dict[tuple[str, int], Event] = {}
        pci_of = {handle: pci for pci, handle in self._handles.items()}
        for _ in range(EVENTS_POLLED_MAX if self._watched else 0):
            count = ctypes.c_uint32(1)
            # The structure's size differs by release, so one is taken at a time: handle, number, text.
            record = ctypes.create_string_buffer(4096)
            try:
                self._library.call("amdsmi_get_gpu_event_notification", 0, ctypes.byref(count), record)
            except SmiError as error:
                self._note("", error)
                break
            if not count.value:
                break
            handle, number = struct.unpack_from("QI", record.raw)
            uuid = uuids.get(pci_of.get(handle, ""))
            if uuid is not None and number in self._event_types:
                kind, severity, name = self._event_types[number]
                before = found.get((uuid, number))
                times = before.count + 1 if before else 1
                found[uuid, number] = Event(kind, uuid, time_ns, 0, name, severity, name, times)
        return list(found.values())

    def _watch(self, handle: int) -> None:
        mask = sum(1 << number - 1 for number in (*self._event_types, _ALL_PROCESSES))
        try:
            self._library.call("amdsmi_init_gpu_event_notification", handle)
            self._watched.append(handle)
            self._library.call("amdsmi_set_gpu_event_notification_mask", handle, mask)
            self._told.add(handle)
        except SmiError as error:
            self._refused.add(f"events ({error})")

    def _links(self, pci: str) -> dict[str, float]:
        """amdsmi_xgmi_link_status_t: how many, then each one's state: 0 down, 1 up, 2 not in use. Since 25.3."""
        function = "amdsmi_get_gpu_xgmi_link_status"
        body = self._query(pci, function, self._handles[pci], bytes_used=4 + 4 * _XGMI_LINKS)
        if not body:
            return {}
        count, *states = struct.unpack(f"I{_XGMI_LINKS}I", body)
        states = states[:count]
        return {"xgmi_links/up": float(states.count(1)), "xgmi_links/down": float(states.count(0))}

    def _query(self, pci: str, function: str, *arguments, bytes_used: int) -> bytes | None:
        if (pci, function) in self._unsupported:
            return None
        try:
            return self._library.read(function, *arguments, bytes_used=bytes_used)
        except SmiError as error:
            self._note(pci, error, function)
            return None

    def _note(self, pci: str, error: SmiError, function: str = "") -> None:
        """What is not supported or permitted is not asked again; other errors are problems."""
        if error.status in (*_ABSENT, NO_PERMISSION):
            # A block without error counts says nothing about others.
            if error.status != NO_DATA and function not in ("", "amdsmi_get_gpu_ecc_count"):
                self._unsupported.add((pci, function))
            if error.status == NO_PERMISSION:
                self._refused.add(str(error))
        else:
            self.problems.append(f"{pci}: {error}" if pci else str(error))

    def _ignore_errors(self, function: str, *arguments) -> None:
        try:
            self._library.call(function, *arguments)
        except SmiError:
            pass


def open_smi(environ: Mapping[str, str] = os.environ) -> Smi:
    """Raises SmiError where there is no library, or none that is known and works."""
    return Smi(open_library(environ), is_admin())


def is_admin(status: str = "/proc/self/status") -> bool:
    """Whether this process has CAP_SYS_ADMIN (proc(5), CapEff); False where that cannot be read."""
    try:
        text = read_text(status) or ""
    except CollectorError:
        return False
    found = re.search(r"^CapEff:\s*([0-9a-f]{1,16})$", text, re.MULTILINE)
    return bool(found and int(found[1], 16) >> _SYS_ADMIN & 1)
