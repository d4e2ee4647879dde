"""Memory controllers, sensors, processors and NVMe controllers of a fixture tree: two sockets of two cores, four threads each."""

from __future__ import annotations

from pathlib import Path

FILES = {
    **{
        f"sys/devices/system/edac/mc/mc{number}/{name}_count": f"{count}\n"
        for number, counts in ((0, (12, 1, 2, 0)), (1, (0, 0, 0, 0)))
        for name, count in zip(("ce", "ue", "ce_noinfo", "ue_noinfo"), counts, strict=True)
    },
    "sys/devices/system/edac/mc/mc0/dimm3/dimm_label": "CPU_SrcID#0_Ha#0_Chan#1_DIMM#0\n",
    "sys/devices/system/edac/mc/mc0/dimm3/dimm_ce_count": "10\n",
    "sys/devices/system/edac/mc/mc0/dimm3/dimm_ue_count": "1\n",
    "sys/class/hwmon/hwmon0/name": "coretemp\n",
    "sys/class/hwmon/hwmon0/temp1_label": "Package id 0\n",
    "sys/class/hwmon/hwmon0/temp1_input": "61000\n",
    "sys/class/hwmon/hwmon0/temp1_max": "88000\n",
    "sys/class/hwmon/hwmon0/temp1_crit": "98000\n",
    "sys/class/hwmon/hwmon0/temp1_crit_alarm": "0\n",
    "sys/class/hwmon/hwmon0/temp2_label": "Core 0\n",
    "sys/class/hwmon/hwmon0/temp2_input": "59000\n",
    "sys/class/hwmon/hwmon1/name": "nvme\n",
    "sys/class/hwmon/hwmon1/temp1_label": "Composite\n",
    "sys/class/hwmon/hwmon1/temp1_input": "41850\n",
    "sys/class/hwmon/hwmon1/temp1_max": "81850\n",
    "sys/class/hwmon/hwmon1/temp1_crit": "-273150\n",
    "sys/class/hwmon/hwmon1/temp1_alarm": "1\n",
    "sys/class/hwmon/hwmon1/temp2_label": "Sensor 1\n",
    "sys/class/hwmon/hwmon1/temp2_input": "41850\n",
    "sys/class/hwmon/hwmon2/name": "board\n",
    "sys/class/hwmon/hwmon2/temp1_input": "-5500\n",
    "sys/class/hwmon/hwmon3/name": "amdgpu\n",
    "sys/class/hwmon/hwmon3/temp1_input": "50000\n",
    "sys/class/thermal/thermal_zone0/type": "x86_pkg_temp\n",
    "sys/class/thermal/thermal_zone0/policy": "step_wise\n",
    "sys/class/thermal/thermal_zone0/temp": "60000\n",
    "sys/class/thermal/cooling_device0/type": "Processor\n",
    "sys/class/thermal/cooling_device0/max_state": "10\n",
    "sys/class/thermal/cooling_device0/cur_state": "0\n",
    **{
        f"sys/devices/system/cpu/cpu{cpu}/{file}": f"{value}\n"
        for cpu in range(8)
        for file, value in (
            ("topology/physical_package_id", cpu // 4),
            ("topology/core_id", cpu % 2),
            # Of each core twice, and of each package four times.
            ("thermal_throttle/core_throttle_count", 10 * (cpu // 4) + cpu % 2),
            ("thermal_throttle/package_throttle_count", 5 + cpu // 4),
        )
    },
    "sys/devices/system/cpu/online": "0-7\n",
    "sys/class/nvme/nvme0/state": "live\n",
    "sys/class/nvme/nvme0/model": "SAMSUNG MZQL23T8HCLS-00A07              \n",
    "sys/class/nvme/nvme0/firmware_rev": "GDC5602Q\n",
    "sys/class/nvme/nvme0/serial": "S64HNE0R500000\n",
    "sys/class/nvme/nvme1/state": "dead\n",
    "sys/class/nvme/nvme1/model": "X\n",
    "sys/class/nvme/nvme1/firmware_rev": "1\n",
    "sys/class/nvme/nvme1/serial": "2\n",
}
# The devices of the sensors.
LINKS = {
    "sys/class/hwmon/hwmon0/device": "../../../devices/platform/coretemp.0",
    "sys/class/hwmon/hwmon1/device": "../../nvme/nvme0",
}


def write_tree(root: Path) -> None:
    for name, text in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / "sys/devices/platform/coretemp.0").mkdir(parents=True, exist_ok=True)
    for name, target in LINKS.items():
        (root / name).symlink_to(target)
