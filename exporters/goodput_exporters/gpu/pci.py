"""The GPUs on the PCI bus, independent of any driver, and the NUMA node of each, from <sysfs>/bus/pci/devices.

A GPU is a display device (class 0x03xxxx) of NVIDIA or AMD, or a processing accelerator (0x12xxxx) of AMD, such as
Instinct of the MI300 series. Not counted are
- AMD graphics on the processor's die: a VGA device (0x0300xx) that shares its slot with a function of the
  processor's vendor id (0x1022), such as the platform security processor, which no card has;
- a device passed to a virtual machine (bound to vfio-pci), since no driver of this node can see it;
- a virtual function (it has a `physfn`) that no driver is bound to.

The folder is listed at most every LIST_SECONDS, and a device's class and vendor are read once: 0.3 ms to list 300
devices, 10 ms the first time.

    bus = PciBus("/sys"); bus.gpus() -> ["0000:3b:00.0"]; bus.numa_node("0000:3b:00.0") -> 0

Classes: PCI Code and ID Assignment Specification, base classes 03h and 12h; sysfs: Documentation/ABI/testing/
sysfs-bus-pci of the kernel.
"""

from __future__ import annotations

import itertools
import os
import re
import time
from collections.abc import Callable

from goodput_exporters.collector import ParseError
from goodput_exporters.system.files import CounterFiles, parse_count
from goodput_exporters.system.interval import Interval

LIST_SECONDS = 10.0
DEVICES_MAX = 16_384
NUMA_NODES_KEPT_MAX = 1024
NVIDIA, AMD, AMD_PROCESSOR = 0x10DE, 0x1002, 0x1022
DISPLAY, VGA, ACCELERATOR = 0x03, 0x0300, 0x12
_ADDRESS = re.compile(r"([0-9a-f]{1,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])")


class PciBus:
    def __init__(self, sysfs: str = "/sys", monotonic_ns: Callable[[], int] = time.monotonic_ns):
        self._root = os.path.join(sysfs, "bus/pci/devices")
        self._interval = Interval(LIST_SECONDS, monotonic_ns)
        self._kinds: dict[str, tuple[int, int]] = {}  # class and vendor, by address
        self._gpus: list[str] | None = None
        self._numa: dict[str, int | None] = {}
        self.problems: list[str] = []  # of the last listing: devices that may be GPUs and cannot be told

    def gpus(self) -> list[str] | None:
        """Addresses of this node's GPUs, None where no PCI bus is visible."""
        if self._interval.is_due():
            self._gpus = self._list()
        return self._gpus

    def numa_node(self, address: str, files: CounterFiles | None = None) -> int | None:
        """The NUMA node of a device, None where unknown; a malformed one is added to `files.problems`."""
        address = normalize(address)
        if address and address not in self._numa and len(self._numa) < NUMA_NODES_KEPT_MAX:
            own = CounterFiles()
            node = self._number(address, "numa_node", parse_node, own)
            if own.problems:
                if files is not None:
                    files.problems += own.problems
                return None  # and not kept: it is read again
            self._numa[address] = node
        return self._numa.get(address)

    def _list(self) -> list[str] | None:
        try:
            with os.scandir(self._root) as entries:
                names = {entry.name for entry in itertools.islice(entries, DEVICES_MAX)}
        except OSError as error:
            is_absent = isinstance(error, FileNotFoundError | NotADirectoryError)
            self.problems = [] if is_absent else [f"{self._root}: {error.strerror}"]
            return None
        files = CounterFiles()
        addresses = {name for name in names if _ADDRESS.fullmatch(name)}
        for gone in self._kinds.keys() - addresses:
            del self._kinds[gone]
            self._numa.pop(gone, None)
        for address in addresses - self._kinds.keys():
            kind, vendor = (self._number(address, file, parse_hex, files) for file in ("class", "vendor"))
            if kind is not None and vendor is not None:
                self._kinds[address] = kind, vendor
        self.problems = files.problems
        on_processor = {
            _slot(address) for address, (_, vendor) in self._kinds.items() if vendor == AMD_PROCESSOR
        }
        return sorted(
            address
            for address, (kind, vendor) in self._kinds.items()
            if is_gpu(kind, vendor)
            and not (kind >> 8 == VGA and vendor == AMD and _slot(address) in on_processor)
            and self._belongs_to_host(address)
        )

    def _belongs_to_host(self, address: str) -> bool:
        device = os.path.join(self._root, address)
        try:
            return os.path.basename(os.readlink(os.path.join(device, "driver"))) != "vfio-pci"
        except OSError:
            return not os.path.lexists(os.path.join(device, "physfn"))

    def _number(
        self, address: str, file: str, parse: Callable[[str], int | None], files: CounterFiles
    ) -> int | None:
        return files.read(os.path.join(self._root, address, file), parse, 64)


def is_gpu(device_class: int, vendor: int) -> bool:
    base = device_class >> 16
    return (base == DISPLAY and vendor in (NVIDIA, AMD)) or (base == ACCELERATOR and vendor == AMD)


def _slot(address: str) -> str:
    return address.rpartition(".")[0]


def parse_hex(text: str) -> int:
    """A number such as 0x030200. Raises ParseError."""
    text = text.strip()
    if re.fullmatch(r"0x[0-9a-fA-F]{1,8}", text):
        return int(text, 16)
    raise ParseError(f"{text[:40]!r} is not a hexadecimal number")


def parse_node(text: str) -> int | None:
    """A NUMA node, None for -1 (unknown). Raises ParseError."""
    return None if text.strip() == "-1" else parse_count(text)


def normalize(address: str) -> str:
    """The address as sysfs writes it: lower case, domain of at least four digits; "" where it is malformed.

    NVML writes domains of eight digits.
    """
    match = _ADDRESS.fullmatch(address.lower())
    return f"{int(match[1], 16):04x}:{match[2]}:{match[3]}.{match[4]}" if match else ""
