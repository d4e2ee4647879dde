"""Errors of the host's memory by controller and module, from sysfs' EDAC.

Format: Documentation/admin-guide/RAS/main.rst and ABI/testing/sysfs-devices-edac of the kernel.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from goodput_exporters.system.files import CounterFiles, clean, parse_count

CONTROLLERS_MAX, MODULES_MAX = 64, 128
KINDS = {"ce": "correctable", "ue": "uncorrectable"}
_CONTROLLER = re.compile(r"mc(\d{1,3})")
_MODULE = re.compile(r"(?:dimm|rank)\d{1,4}")


def read_memory_errors(sysfs: str, files: CounterFiles) -> Iterator[tuple]:
    """(series, labels, value) of each controller and of each module that it knows."""
    root = f"{sysfs}/devices/system/edac/mc"
    for name in files.names(root)[:CONTROLLERS_MAX]:
        if match := _CONTROLLER.fullmatch(name):
            yield from _controller(f"{root}/{name}", match[1], files)


def _controller(path: str, number: str, files: CounterFiles) -> Iterator[tuple]:
    controller = {"controller": number}
    for short, kind in KINDS.items():
        # Also those of no known module.
        count = files.read(f"{path}/{short}_count", parse_count)
        yield "goodput_host_memory_errors_total", {**controller, "kind": kind}, count
    modules = [name for name in files.names(path) if _MODULE.fullmatch(name)]
    for module in modules[:MODULES_MAX]:
        # The slot, where the driver or the administrator (edac-ctl --register-labels) has named it.
        slot = files.read(f"{path}/{module}/dimm_label", clean) or ""
        for short, kind in KINDS.items():
            count = files.read(f"{path}/{module}/dimm_{short}_count", parse_count)
            labels = {**controller, "module": module, "slot": slot, "kind": kind}
            yield "goodput_host_memory_module_errors_total", labels, count
