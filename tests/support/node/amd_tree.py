"""Trees of sysfs and procfs as a node with AMD GPUs has them: MI300X-like cards, an older one, KFD's processes."""

from __future__ import annotations

UNIQUE = "8d6f3a1b2c4d5e6f"
# Of a GPU with an OAM module's sensors: no edge temperature, power1_input and no average.
MI300X = {
    "vendor": "0x1002\n",
    "device": "0x74a1\n",
    "uevent": "DRIVER=amdgpu\nPCI_CLASS=120000\nPCI_ID=1002:74A1\nPCI_SLOT_NAME=0000:1B:00.0\n",
    "unique_id": f"{UNIQUE}\n",
    "product_name": "AMD Instinct MI300X OAM\n",
    "gpu_busy_percent": "87\n",
    "mem_busy_percent": "29\n",
    "mem_info_vram_total": "206141652992\n",
    "mem_info_vram_used": "103070826496\n",
    "pp_dpm_sclk": "0: 500Mhz\n1: 2009Mhz *\n2: 2100Mhz\n",
    "pp_dpm_mclk": "0: 900Mhz *\n1: 1300Mhz\n",
    "pcie_replay_count": "4\n",
    "current_link_speed": "32.0 GT/s PCIe\n",
    "current_link_width": "16\n",
    "max_link_speed": "64.0 GT/s PCIe\n",
    "max_link_width": "16\n",
    "hwmon/hwmon5/name": "amdgpu\n",
    "hwmon/hwmon5/power1_input": "412734000\n",
    "hwmon/hwmon5/power1_cap": "750000000\n",
    "hwmon/hwmon5/power1_cap_default": "740000000\n",
    "hwmon/hwmon5/power1_cap_max": "760000000\n",
    "hwmon/hwmon5/power1_cap_min": "0\n",
    "hwmon/hwmon5/temp1_input": "54000\n",
    "hwmon/hwmon5/temp1_label": "junction\n",
    "hwmon/hwmon5/temp1_crit": "100000\n",
    "hwmon/hwmon5/temp1_emergency": "105000\n",
    "hwmon/hwmon5/temp2_input": "41500\n",
    "hwmon/hwmon5/temp2_label": "mem\n",
    "hwmon/hwmon5/temp2_crit": "95000\n",
    "hwmon/hwmon5/freq1_input": "2010000000\n",
    "hwmon/hwmon5/freq1_label": "sclk\n",
    "ras/umc_err_count": "ue: 1\nce: 20\nde: 5\n",
    "ras/gfx_err_count": "ue: 2\nce: 3\n",
    "ras/features": "feature mask: 0xffff\n",
}
# An older card: edge, junction and memory sensors, an average power, an energy counter, no unique id.
OLDER = {
    "vendor": "0x1002\n",
    "device": "0x740f\n",
    "uevent": "DRIVER=amdgpu\nPCI_SLOT_NAME=0000:c1:00.0\n",
    "gpu_busy_percent": "0\n",
    "mem_info_vram_total": "68702699520\n",
    "mem_info_vram_used": "0\n",
    "pp_dpm_sclk": "S: 19Mhz *\n0: 800Mhz\n1: 1700Mhz\n",
    "current_link_speed": "Unknown\n",
    "current_link_width": "0\n",
    "max_link_speed": "16.0 GT/s PCIe\n",
    "max_link_width": "255\n",
    "hwmon/hwmon2/power1_average": "43000000\n",
    "hwmon/hwmon2/power1_input": "44000000\n",
    "hwmon/hwmon2/energy1_input": "123456789\n",
    "hwmon/hwmon2/pwm1": "51\n",
    "hwmon/hwmon2/temp1_input": "-1500\n",
    "hwmon/hwmon2/temp1_label": "edge\n",
    "hwmon/hwmon2/temp2_input": "45000\n",
    "hwmon/hwmon2/temp2_label": "junction\n",
}
# KFD: node 0 is a CPU, the GPUs have numbers of their own; location_id is bus << 8 | slot << 3 | function.
KFD = {
    "topology/nodes/0/gpu_id": "0\n",
    "topology/nodes/0/properties": "cpu_cores_count 96\nlocation_id 0\ndomain 0\n",
    "topology/nodes/1/gpu_id": "51234\n",
    "topology/nodes/1/properties": f"simd_count 1216\nlocation_id {0x1B00}\ndomain 0\nunique_id 1\n",
    "topology/nodes/2/gpu_id": "777\n",
    "topology/nodes/2/properties": f"simd_count 440\nlocation_id {0xC100}\ndomain 0\n",
    "proc/4242/pasid": "32770\n",
    "proc/4242/vram_51234": "1073741824\n",
    "proc/4242/vram_777": "0\n",
    "proc/4243/vram_51234": "4096\n",
    "proc/4243/vram_777": "4096\n",
    "proc/999/vram_51234": "4096\n",
}
PIDS = (4242, 4243)  # 999 is of another PID namespace.


def write(root, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def write_tree(root) -> None:
    """card0 is no AMD GPU, card1 an MI300X, card2 an older one; connectors and render nodes lie there too."""
    drm = root / "sys/class/drm"
    write(drm / "card0/device", {"vendor": "0x10de\n"})
    write(drm / "card1/device", MI300X)
    write(drm / "card2/device", OLDER)
    for name in ("card1-DP-1", "renderD128", "version"):
        write(drm / name, {"device/vendor": "0x1002\n"})
    write(root / "sys/module/amdgpu", {"version": "6.8.5\n"})
    write(root / "sys/class/kfd/kfd", KFD)
    for pid in PIDS:
        write(root / f"proc/{pid}", {"stat": ""})
