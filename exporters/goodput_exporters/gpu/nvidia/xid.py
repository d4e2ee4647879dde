"""NVIDIA XID errors: the meaning, severity and first remedy of each number in the driver's error reports.

Numbers and actions are from NVIDIA's public catalogue of October 2025, which ends at 172
(docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html), and, for the few that only Volta and older report, from
its list for older GPUs; names, classes and severities are ours. What the catalogue does not have is unknown. Those of
NVLink 5 (144 to 150) depend on a sub-code, which only the kernel's log has: nvlink_xid.py.

    lookup(79)  # Xid(79, "GPU fell off the bus", "bus", "critical", "reboot_node")
"""

from __future__ import annotations

from typing import NamedTuple

# application: a wrong kernel or wrong data; memory: ECC, row remapping, page retirement; link: NVLink, C2C; link_fatal:
# an NVLink error that needs a reset by its sub-code; bus: PCIe;
# firmware: the GPU's own processors (GSP, PMU, SEC2); gpu: an engine hung or failed; video: engines that training
# hardly uses (display, decoders, encoders); notice: something changed.
KINDS = (
    *("application", "memory", "link", "bus", "firmware", "gpu", "power", "driver", "video", "notice"),
    *("link_fatal", "unknown"),
)
# critical: the GPU is unusable until someone acts; warning: work was lost or will be; info: nothing to do.
SEVERITIES = ("info", "warning", "critical")
ACTIONS = (
    *("none", "restart_app", "reset_gpu", "restart_vm", "reboot_node", "check_hardware", "check_link"),
    *("update_software", "watch", "see_other_xid", "see_kernel_log", "look_up"),
)
CATALOGUE_DATE, CATALOGUE_END = "October 2025", 172


class Xid(NamedTuple):
    """One kind of error; `kind`, `severity` and `action` are from the lists above."""

    number: int
    name: str
    kind: str
    severity: str
    action: str


_TABLE: dict[int, tuple[str, str, str, str]] = {
    8: ("GPU stopped processing", "gpu", "warning", "restart_app"),
    11: ("bad push buffer", "application", "warning", "restart_app"),
    12: ("driver failed on a GPU exception", "driver", "warning", "restart_app"),
    13: ("exception in a kernel", "application", "warning", "restart_app"),
    16: ("display engine hung", "video", "warning", "restart_app"),
    18: ("bus mastering is off", "bus", "critical", "check_hardware"),
    24: ("semaphore timeout", "gpu", "warning", "restart_app"),
    25: ("illegal push buffer", "application", "warning", "restart_app"),
    31: ("page fault in GPU memory", "application", "warning", "restart_app"),
    32: ("corrupted push buffer", "application", "warning", "restart_app"),
    37: ("method unknown to firmware", "driver", "info", "none"),
    38: ("firmware watchdog", "driver", "warning", "watch"),
    43: ("channel reset, application stopped", "application", "warning", "restart_app"),
    44: ("fault during context switch", "gpu", "warning", "restart_app"),
    45: ("channel removed after an earlier error", "application", "warning", "see_other_xid"),
    46: ("GPU timeout", "gpu", "critical", "reset_gpu"),
    48: ("uncorrectable ECC error", "memory", "critical", "reset_gpu"),
    54: ("no auxiliary power", "power", "critical", "check_hardware"),
    56: ("display engine error", "video", "warning", "watch"),
    57: ("memory link training failed", "memory", "critical", "check_hardware"),
    58: ("unstable memory interface", "memory", "critical", "check_hardware"),
    59: ("microcontroller error", "firmware", "critical", "reset_gpu"),
    61: ("microcontroller breakpoint", "firmware", "critical", "reset_gpu"),
    62: ("microcontroller halt", "firmware", "critical", "reset_gpu"),
    63: ("memory row remapped or page retired", "memory", "info", "watch"),
    64: ("row remap or page retirement failed", "memory", "critical", "reset_gpu"),
    66: ("illegal access by the driver", "driver", "warning", "update_software"),
    67: ("illegal access by the driver", "driver", "warning", "update_software"),
    69: ("error of a graphics class", "application", "warning", "restart_app"),
    74: ("NVLink error", "link", "critical", "check_link"),
    78: ("vGPU did not start", "driver", "warning", "update_software"),
    79: ("GPU fell off the bus", "bus", "critical", "reboot_node"),
    80: ("corrupted data sent to the GPU", "application", "warning", "restart_app"),
    81: ("VGA subsystem error", "video", "warning", "watch"),
    86: ("optical flow engine error", "video", "warning", "restart_app"),
    90: ("L2 cache error", "memory", "critical", "reset_gpu"),
    92: ("many correctable ECC errors", "memory", "warning", "watch"),
    93: ("InfoROM wear limit", "notice", "info", "watch"),
    94: ("contained memory error", "memory", "warning", "restart_app"),
    95: ("uncontained memory error", "memory", "critical", "reset_gpu"),
    106: ("SMBus test message", "notice", "info", "none"),
    107: ("SMBus test message", "notice", "info", "none"),
    108: ("NVLink remote translation error", "link", "warning", "see_other_xid"),
    109: ("context switch timeout", "gpu", "critical", "reset_gpu"),
    110: ("security fault", "firmware", "critical", "reset_gpu"),
    119: ("GSP timeout", "firmware", "critical", "reset_gpu"),
    120: ("GSP error", "firmware", "critical", "reset_gpu"),
    121: ("C2C link error", "link", "warning", "watch"),
    122: ("SPI read failed", "firmware", "warning", "watch"),
    123: ("SPI write failed", "firmware", "warning", "watch"),
    124: ("SPI erase failed", "firmware", "warning", "watch"),
    125: ("InfoROM error", "firmware", "warning", "watch"),
    136: ("NVLink training failed", "link", "critical", "reset_gpu"),
    137: ("NVLink privilege error", "link", "warning", "see_other_xid"),
    139: ("optical flow engine error", "video", "warning", "restart_app"),
    140: ("unrecovered ECC error", "memory", "critical", "reset_gpu"),
    141: ("CUDA fast path error", "driver", "warning", "watch"),
    143: ("GPU did not start", "gpu", "critical", "reset_gpu"),
    # Without their sub-code. All of 147 and 148 are to be ignored, the only one of 150 needs a reset.
    144: ("NVLink error (SAW)", "link", "warning", "see_kernel_log"),
    145: ("NVLink error (RLW)", "link", "warning", "see_kernel_log"),
    146: ("NVLink error (TLW)", "link", "warning", "see_kernel_log"),
    147: ("NVLink error (TREX)", "link", "info", "watch"),
    148: ("NVLink error (control)", "link", "info", "watch"),
    149: ("NVLink error (network)", "link", "warning", "see_kernel_log"),
    150: ("NVLink error (MSE)", "link", "critical", "reset_gpu"),
    151: ("key rotation failed", "driver", "critical", "restart_vm"),
    152: ("DLA memory error", "gpu", "warning", "watch"),
    153: ("DLA timeout", "gpu", "warning", "watch"),
    154: ("recovery action changed", "notice", "warning", "see_other_xid"),
    155: ("NVLink error (software)", "link", "critical", "reset_gpu"),
    156: ("resource retired", "memory", "warning", "reset_gpu"),
    157: ("resource retirement failed", "memory", "info", "watch"),
    158: ("fatal GPU timeout", "gpu", "critical", "reset_gpu"),
    159: ("CHI error without data", "bus", "warning", "see_other_xid"),
    160: ("memory channel retired", "memory", "warning", "watch"),
    161: ("memory channel retirement failed", "memory", "info", "watch"),
    162: ("power smoothing is on again", "power", "info", "none"),
    163: ("power smoothing is off", "power", "warning", "watch"),
    164: ("power smoothing near its end of life", "power", "warning", "check_hardware"),
    165: ("power smoothing worn out", "power", "warning", "check_hardware"),
    166: ("NVLink traffic before encryption", "link", "warning", "watch"),
    167: ("fatal PCIe timeout", "bus", "critical", "reboot_node"),
    168: ("less GPU memory after errors", "memory", "warning", "watch"),
    169: ("security processor halt", "firmware", "critical", "reset_gpu"),
    170: ("NVLink security interrupt", "link", "warning", "watch"),
    171: ("uncorrectable DRAM error", "memory", "critical", "see_other_xid"),
    172: ("uncorrectable SRAM error", "memory", "critical", "see_other_xid"),
}
_COPY_ENGINES = (*range(39, 42), *range(70, 73), *range(75, 78), 85, *range(126, 136))
_DECODERS = (60, 68, 83, 84, 88, 89, *range(96, 99), 82, *range(99, 106))
_ENCODERS = (42, 47, 65, 73, 142)
_TABLE.update(dict.fromkeys(_COPY_ENGINES, ("copy engine error", "gpu", "warning", "restart_app")))
_TABLE.update(dict.fromkeys(_DECODERS, ("decoder error", "video", "warning", "restart_app")))
_TABLE.update(dict.fromkeys(_ENCODERS, ("encoder error", "video", "warning", "restart_app")))

UNKNOWN = f"not in NVIDIA's catalogue of {CATALOGUE_DATE}"
XIDS: dict[int, Xid] = {number: Xid(number, *_TABLE[number]) for number in sorted(_TABLE)}


def lookup(number: int) -> Xid:
    """The meaning of an XID; of kind `unknown` for a number that is not in the table."""
    return XIDS.get(number) or Xid(number, UNKNOWN, "unknown", "warning", "look_up")
