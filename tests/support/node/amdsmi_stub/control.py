"""The stub of libamd_smi.so: compile it, and write the file that says what it answers (see amdsmi_stub.c for its lines).

control = Control(tmp_path / "amdsmi.txt"); control.gpu(0, "0000:1b:00.0"); control.write()
control.set("0.metrics.current_socket_power", 401)      # watts, from the next call on
"""

from __future__ import annotations

import subprocess
from pathlib import Path

ENVIRONMENT = "GOODPUT_AMDSMI_STUB"
LIBRARY = "libamd_smi.so"
PERMISSION_DENIED, NOT_SUPPORTED, IO_ERROR = "!10", "!2", "!12"
# An MI300X that computes; what its readings are is worked out by hand in the test.
MI300X = {
    "amdsmi_get_gpu_memory_total": 206_141_652_992,
    "amdsmi_get_gpu_memory_usage": 150_000_000_000,
    "amdsmi_get_gpu_ecc_enabled": 0b1000_0101,  # umc, gfx, xgmi_wafl
    "amdsmi_get_gpu_ecc_count.1": "7 1 2",
    "amdsmi_get_gpu_ecc_count.4": "3 0 0",
    "amdsmi_get_gpu_ecc_count.128": "5 0 0",
    "amdsmi_get_gpu_xgmi_link_status": "8 1 1 1 1 1 1 0 2",
    "amdsmi_get_gpu_bad_page_info": "0 0 1",
    "amdsmi_init_gpu_event_notification": 0,
    "amdsmi_get_gpu_asic_info": "AMD Instinct MI300X",
    "metrics.temperature_hotspot": 61,
    "metrics.temperature_mem": 48,
    "metrics.average_gfx_activity": 93,
    "metrics.average_umc_activity": 31,
    "metrics.vcn_activity": "10 20 60",
    "metrics.jpeg_activity": "100 70",
    "metrics.current_socket_power": 640,
    "metrics.energy_accumulator": 65536 * 1000,
    "metrics.current_uclk": 1300,
    "metrics.current_gfxclks": "2050 2100 2075 2060 2080 2090 2055 2065",
    "metrics.pcie_link_width": 16,
    "metrics.pcie_link_speed": 320,
    "metrics.pcie_replay_count_acc": 9,
    "metrics.pcie_l0_to_recov_count_acc": 21,
    "metrics.pcie_nak_sent_count_acc": 22,
    "metrics.pcie_nak_rcvd_count_acc": 23,
    "metrics.xgmi_read_data_acc": "1 2 3 4 5 6 7",
    "metrics.xgmi_write_data_acc": "10 20 30 40 50 60 70",
    "metrics.accumulation_counter": 100_000,
    "metrics.prochot_residency_acc": 0,
    "metrics.ppt_residency_acc": 5_000,
    "metrics.socket_thm_residency_acc": 100,
    "metrics.vr_thm_residency_acc": 0,
    "metrics.hbm_thm_residency_acc": 0,
}


def build(directory: Path) -> Path:
    """Compile the stub. Returns the library's path."""
    directory.mkdir(parents=True, exist_ok=True)
    target = directory / LIBRARY
    source = Path(__file__).with_name("amdsmi_stub.c")
    command = ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([*command, "-o", str(target), str(source)], check=True)
    return target


class Control:
    """The lines of the control file. `set` and `drop` write it at once; the stub reads it at each call."""

    def __init__(self, path: Path):
        self.path = path
        self.lines: dict[str, object] = {"version": "26 0 2", "count": 0}
        self._events = 0

    def write(self) -> None:
        new = self.path.with_suffix(".new")
        new.write_text("".join(f"{key} {value}\n" for key, value in self.lines.items()))
        new.replace(self.path)

    def set(self, key: str, value: object) -> None:
        self.lines[key] = value
        self.write()

    def drop(self, *keys: str) -> None:
        for key in keys:
            self.lines.pop(key, None)
        self.write()

    def gpu(self, index: int, bdf: str) -> None:
        """Add an MI300X."""
        self.lines |= {f"{index}.{key}": value for key, value in MI300X.items()}
        self.lines[f"{index}.bdf"] = bdf
        self.lines["count"] = max(int(str(self.lines["count"])), index + 1)

    def event(self, gpu: int, number: int) -> None:
        self._events += 1
        self.set(f"event.{self._events}", f"{gpu} {number}")
