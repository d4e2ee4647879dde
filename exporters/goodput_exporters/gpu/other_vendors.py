"""Accelerators on the PCI bus that no driver here reads: those of other vendors than NVIDIA and AMD.

other_accelerators("/sys")  ->  Counter({"Intel Gaudi 1da3:1020": 8})
"""

from __future__ import annotations

import os
from collections import Counter

from goodput_exporters.collector import CollectorError
from goodput_exporters.gpu.pci import ACCELERATOR, AMD, DISPLAY, NVIDIA, VGA, parse_hex
from goodput_exporters.system.files import CounterFiles, list_names

DEVICES_MAX = 16_384
INTEL, MOORE_THREADS, AMAZON = 0x8086, 0x1ED5, 0x1D0F
# By PCI vendor id; another one is named by its id alone.
VENDORS = {
    INTEL: "Intel GPU",
    MOORE_THREADS: "Moore Threads",
    AMAZON: "Amazon Neuron",
    0x1DA3: "Intel Gaudi",
    0x1AE0: "Google TPU",
    0x19E5: "Huawei Ascend",
    0xCABC: "Cambricon",
    0x1D95: "Graphcore",
    0x17CB: "Qualcomm Cloud AI",
    0x1E52: "Tenstorrent",
    0x1ED2: "FuriosaAI",
}
# Inferentia and Trainium call themselves system peripherals.
NEURON_DEVICES = (0x7064, 0x7065, 0x7066, 0x7067, 0x7164, 0x7264, 0x7364)


def other_accelerators(sysfs: str) -> Counter[str]:
    """How many there are of each, by vendor and PCI id; none where no PCI bus is visible."""
    root = os.path.join(sysfs, "bus/pci/devices")
    found: Counter[str] = Counter()
    try:
        names = list_names(root) or []
    except CollectorError:
        return found
    files = CounterFiles()
    for name in names[:DEVICES_MAX]:
        kind, vendor, device = (
            files.read(os.path.join(root, name, file), parse_hex, 64)
            for file in ("class", "vendor", "device")
        )
        if kind is not None and vendor is not None and is_other(kind, vendor, device or 0):
            found[f"{VENDORS.get(vendor, 'accelerator')} {vendor:04x}:{device or 0:04x}"] += 1
    return found


def is_other(device_class: int, vendor: int, device: int) -> bool:
    """Whether it is an accelerator, or a GPU that is not the processor's own graphics (a VGA device)."""
    base = device_class >> 16
    if base == DISPLAY:
        return vendor in (INTEL, MOORE_THREADS) and device_class >> 8 != VGA
    if vendor == AMAZON:
        return device in NEURON_DEVICES
    return base == ACCELERATOR and vendor not in (NVIDIA, AMD)
