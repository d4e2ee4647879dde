"""The stub of libnvidia-ml.so.1: compile it, and write the file that says what it answers (see nvml_stub.c for its lines).

control = Control(tmp_path / "nvml.txt"); control.gpu(0); control.write()
control.set("0.nvmlDeviceGetPowerUsage", 250_000)      # milliwatts, from the next call on
"""

from __future__ import annotations

import itertools
import os
import subprocess
from pathlib import Path

ENVIRONMENT = "GOODPUT_NVML_STUB"
LIBRARY = "libnvidia-ml.so.1"
GPU_IS_LOST = "!15"
_generations = itertools.count(1)


def build(directory: Path, without: tuple[str, ...] = ()) -> Path:
    """Compile the stub, without some functions where it is to be an older driver's. Returns the library's path."""
    directory.mkdir(parents=True, exist_ok=True)
    target = directory / LIBRARY
    source = Path(__file__).with_name("nvml_stub.c")
    hidden = [f"-D{name}=hidden_{name}" for name in without]
    command = ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", *hidden]
    subprocess.run([*command, "-o", str(target), str(source)], check=True)
    return target


def uuid(gpu: int) -> str:
    return f"GPU-0000000{gpu}-aaaa-bbbb-cccc-0123456789ab"


class Control:
    """The lines of the control file. `set` and `drop` write it at once; the stub sees it at its next call."""

    def __init__(self, path: Path):
        self.path = path
        self.lines: dict[str, object] = {"count": 0, "driver": "550.54.15"}
        self._xids = 0

    def write(self) -> None:
        new = self.path.with_suffix(".new")
        new.write_text("".join(f"{key} {value}\n" for key, value in self.lines.items()))
        # The stub reads the file again where its times differ, which two writes in one tick may not do by themselves.
        stamp = next(_generations) * 1_000_000_000
        os.utime(new, ns=(stamp, stamp))
        new.replace(self.path)

    def set(self, key: str, value: object) -> None:
        self.lines[key] = value
        self.write()

    def drop(self, *keys: str) -> None:
        for key in keys:
            self.lines.pop(key, None)
        self.write()

    def lose(self, gpu: int) -> None:
        self.set(f"{gpu}.*", GPU_IS_LOST)

    def find(self, gpu: int) -> None:
        self.drop(f"{gpu}.*")

    def xid(self, gpu: int, number: int, instance: int = 0xFFFF_FFFF) -> None:
        self._xids += 1
        self.set(f"xid.{self._xids}", f"{gpu} {number} {instance}")

    def gpu(self, index: int, **changes: object) -> None:
        """Add an H100 with all that it answers; the figures are those that the tests work out by hand."""
        lines = {
            "uuid": uuid(index),
            "name": "NVIDIA H100 80GB HBM3",
            "pci": f"0:{0x3B + index:x}:0",
            **_ANSWERS,
            **changes,
        }
        self.lines.update({f"{index}.{key}": value for key, value in lines.items()})
        self.lines["count"] = max(int(self.lines["count"]), index + 1)

    def instance(self, gpu: int, place: int, gpu_instance: int, **changes: object) -> None:
        """Add a MIG instance 3g.40gb, and set the GPU's MIG mode."""
        lines = {
            "gi": gpu_instance,
            "uuid": f"MIG-{gpu}{place}",
            "name": "NVIDIA H100 80GB HBM3 MIG 3g.40gb",
            "nvmlDeviceGetAttributes": "3 3 40448",
            "nvmlDeviceGetMemoryInfo": "42412802048 1000000000 41400000000 12802048",
            "nvmlDeviceGetComputeRunningProcesses": "77",
            "nvmlDeviceGetGraphicsRunningProcesses": "",
            **changes,
        }
        self.lines.update({f"{gpu}m{place}.{key}": value for key, value in lines.items()})
        self.lines[f"{gpu}.nvmlDeviceGetMigMode"] = 1
        self.lines[f"{gpu}.nvmlDeviceGetMaxMigDeviceCount"] = 7


_ALL_LINKS = 0xFFFF_FFFF
# By nvmlValueType_t: 1 unsigned int, 3 unsigned long long.
_FIELDS = {
    (1, 0): "1 1",
    (2, 0): "0 1",
    (3, 0): "11 3",
    (4, 0): "1 3",
    (5, 0): "120 3",
    (6, 0): "2 3",
    (8, 0): "1 3",
    (11, 0): "10 3",
    (12, 0): "1 3",
    (22, 0): "119 3",
    (23, 0): "2 3",
    (38, 0): "7 3",
    (45, 0): "8 3",
    (52, 0): "9 3",
    (59, 0): "10 3",
    (82, 0): "74 1",
    (94, 0): "5 1",
    (138, _ALL_LINKS): "1000000 3",
    (139, _ALL_LINKS): "2000000 3",
    (142, 0): "4 1",
    (143, 0): "1 1",
    (144, 0): "0 1",
    (145, 0): "0 1",
    (169, 0): "13 1",
    (173, 0): "14 1",
    (176, 0): "15 1",
    (180, 0): "0 1",
    (186, 0): "401250 1",
    (193, 0): "-8 5",
    (194, 0): "-2 5",
    (230, 0): "0 1",
}
# Three of a GPU's NVLinks, the last one down.
_LINKS = {
    f"nvmlDeviceGetNvLinkState.{link}": 1 if link < 2 else 0 if link == 2 else "!2" for link in range(18)
}
for _link in range(3):
    _FIELDS |= {(number, _link): f"{number + _link} 3" for number in (161, 162, 163, 138, 139)}
_GPM = {
    1: 95.0,
    2: 90.5,
    3: 42.0,
    4: 21.0,
    5: 61.25,
    6: 2.0,
    7: 58.0,
    9: 1.25,
    10: 33.0,
    11: 0.0,
    12: 12.5,
    13: 1.0,
    20: 10.0,
    21: 20.0,
    60: 300.0,
    61: 400.5,
}
_ANSWERS: dict[str, object] = {
    "nvmlDeviceGetUtilizationRates": "97 41",
    "nvmlDeviceGetPowerUsage": 312_500,
    "nvmlDeviceGetTotalEnergyConsumption": 123_456_789,
    "nvmlDeviceGetEnforcedPowerLimit": 700_000,
    "nvmlDeviceGetClockInfo.1": 1980,
    "nvmlDeviceGetClockInfo.2": 2619,
    "nvmlDeviceGetClockInfo.3": 1545,
    "nvmlDeviceGetMaxClockInfo.1": 1980,
    "nvmlDeviceGetMaxClockInfo.2": 2619,
    "nvmlDeviceGetMaxClockInfo.3": 1545,
    "nvmlDeviceGetApplicationsClock.1": 1755,
    "nvmlDeviceGetApplicationsClock.2": 2619,
    "nvmlDeviceGetEncoderUtilization": "3 166666",
    "nvmlDeviceGetDecoderUtilization": "7 166666",
    "nvmlDeviceGetJpgUtilization": "11 166666",
    "nvmlDeviceGetOfaUtilization": "0 166666",
    "nvmlDeviceGetPerformanceState": 0,
    "nvmlDeviceGetBAR1MemoryInfo": "137438953472 137437118464 1835008",
    "nvmlDeviceGetPowerManagementLimit": 650_000,
    "nvmlDeviceGetPowerManagementDefaultLimit": 700_000,
    "nvmlDeviceGetPowerManagementLimitConstraints": "200000 700000",
    "nvmlDeviceGetTemperatureThreshold.0": 92,
    "nvmlDeviceGetTemperatureThreshold.1": 89,
    "nvmlDeviceGetTemperatureThreshold.2": 95,
    "nvmlDeviceGetTemperatureThreshold.3": 87,
    "nvmlDeviceGetMarginTemperature": 26,
    "nvmlDeviceGetMemoryErrorCounter.7": 3,
    "nvmlDeviceGetMemoryErrorCounter.17": 4,
    "nvmlDeviceGetMemoryErrorCounter.107": 0,
    "nvmlDeviceGetMemoryErrorCounter.117": 5,
    "nvmlDeviceGetSramEccErrorStatus": 0,
    "nvmlDeviceGetRowRemapperHistogram": "632 4 2 1 0",
    "nvmlDeviceGetGpuFabricInfoV": "3 0 170",
    "nvmlDeviceGetGridLicensableFeatures": "0",
    "nvmlDeviceGetTemperature.0": 61,
    **_LINKS,
    "nvmlDeviceGetCurrentClocksEventReasons": 0x4 | 0x80,
    "nvmlDeviceGetViolationStatus.0": 1_500_000_000,
    "nvmlDeviceGetViolationStatus.1": 250_000_000,
    "nvmlDeviceGetViolationStatus.2": 0,
    "nvmlDeviceGetViolationStatus.3": 1,
    "nvmlDeviceGetViolationStatus.4": 2_000_000_000,
    "nvmlDeviceGetViolationStatus.10": 3_000_000_000,
    "nvmlDeviceGetViolationStatus.11": 4_000_000_000,
    "nvmlDeviceGetMemoryInfo": "85520809984 64424509440 20424163328 672137216",
    "nvmlDeviceGetCurrPcieLinkGeneration": 4,
    "nvmlDeviceGetMaxPcieLinkGeneration": 5,
    "nvmlDeviceGetCurrPcieLinkWidth": 8,
    "nvmlDeviceGetMaxPcieLinkWidth": 16,
    "nvmlDeviceGetComputeRunningProcesses": "4243 4242",
    "nvmlDeviceGetGraphicsRunningProcesses": "99 4242",
    "nvmlDeviceGetMigMode": 0,
    "nvmlDeviceRegisterEvents": 0,
    "nvmlGpmQueryDeviceSupport": 1,
    **{f"field.{number}.{scope}": value for (number, scope), value in _FIELDS.items()},
    **{f"gpm.{number}": value for number, value in _GPM.items()},
}  # fmt: skip
