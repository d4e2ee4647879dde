"""NVMe controllers from sysfs: whether they work. Their temperatures are hwmon's, their health is nvme_health.py's.

States: nvme_sysfs_show_state in drivers/nvme/host/sysfs.c of the kernel.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from goodput_exporters.collectors.hardware.nvme_health import NvmeHealth
from goodput_exporters.system.files import CounterFiles, clean

CONTROLLERS_MAX = 64
_CONTROLLER = re.compile(r"nvme\d{1,4}")


def read_nvme(sysfs: str, files: CounterFiles, health: NvmeHealth) -> Iterator[tuple]:
    """(series, labels, value) of each controller. Only those that work are asked for their health."""
    root = f"{sysfs}/class/nvme"
    working = []
    for name in [name for name in files.names(root) if _CONTROLLER.fullmatch(name)][:CONTROLLERS_MAX]:
        state = files.read(f"{root}/{name}/state", clean)
        if state:
            yield "goodput_host_nvme_up", {"device": name}, float(state == "live")
        if state == "live":
            working.append(name)
        model, firmware = (files.read(f"{root}/{name}/{file}", clean) for file in ("model", "firmware_rev"))
        if model is not None or firmware is not None:
            labels = {"device": name, "model": model or "", "firmware": firmware or "", "state": state or ""}
            yield "goodput_host_nvme_info", labels, 1
    yield from health.read(working, files)
