"""NVMe controllers from sysfs: whether they work. Their temperatures are hwmon's; wear needs root and an ioctl.

States: nvme_sysfs_show_state in drivers/nvme/host/sysfs.c of the kernel.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from goodput_exporters.system.files import CounterFiles, clean

CONTROLLERS_MAX = 64
_CONTROLLER = re.compile(r"nvme\d{1,4}")


def read_nvme(sysfs: str, files: CounterFiles) -> Iterator[tuple]:
    """(series, labels, value) of each controller."""
    root = f"{sysfs}/class/nvme"
    for name in [name for name in files.names(root) if _CONTROLLER.fullmatch(name)][:CONTROLLERS_MAX]:
        state = files.read(f"{root}/{name}/state", clean)
        if state:
            yield "goodput_host_nvme_up", {"device": name}, float(state == "live")
        model, firmware = (files.read(f"{root}/{name}/{file}", clean) for file in ("model", "firmware_rev"))
        if model is not None or firmware is not None:
            labels = {"device": name, "model": model or "", "firmware": firmware or "", "state": state or ""}
            yield "goodput_host_nvme_info", labels, 1
