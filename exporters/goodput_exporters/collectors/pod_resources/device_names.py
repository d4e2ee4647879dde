"""The names that device plugins, and drivers of dynamic resource allocation (DRA), give a whole GPU.

NVIDIA's DRA driver names a GPU gpu-MINOR, GKE's plugin nvidiaMINOR: the number of its device file, which need not be NVML's
index. AMD's plugin has the PCI address, its DRA driver gpu-CARD-RENDER, the numbers of its DRM devices.

https://github.com/kubernetes-sigs/dra-driver-nvidia-gpu/blob/main/cmd/gpu-kubelet-plugin/deviceinfo.go
https://github.com/ROCm/k8s-gpu-dra-driver/blob/main/cmd/gpu-kubeletplugin/deviceinfo.go
"""

from __future__ import annotations

import os
import re

from goodput_exporters.collector import CollectorError
from goodput_exporters.gpu.merge import MergedGpu
from goodput_exporters.system.files import read_text

_MINOR = re.compile(r"^Device Minor:\s*(\d{1,5})\s*$", re.MULTILINE)
_CARD, _RENDER = re.compile(r"card(\d{1,5})"), re.compile(r"renderD(\d{1,5})")


def device_names(gpu: MergedGpu, sysfs: str, procfs: str) -> set[str]:
    """Names as in Allocation.device; of a DRA driver with the driver before it, such as gpu.nvidia.com/gpu-0."""
    if "amd" not in gpu.known_by:
        minor = _minor(gpu.pci, procfs) or str(gpu.index)
        return {f"nvidia{minor}", f"gpu.nvidia.com/gpu-{minor}", gpu.pci} - {""}
    entries = _entries(f"{sysfs}/bus/pci/devices/{gpu.pci}/drm")
    cards, renders = (
        [match[1] for entry in entries if (match := kind.fullmatch(entry))] for kind in (_CARD, _RENDER)
    )
    return {gpu.pci, *(f"gpu.amd.com/gpu-{card}-{render}" for card in cards for render in renders)} - {""}


def _minor(pci: str, procfs: str) -> str:
    """The number of an NVIDIA GPU's device file, "" where its driver does not say."""
    if not pci:
        return ""
    try:
        text = read_text(f"{procfs}/driver/nvidia/gpus/{pci}/information")
    except CollectorError:
        return ""
    found = _MINOR.search(text or "")
    return found[1] if found else ""


def _entries(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []
