"""The sub-codes of NVLink 5's XIDs (144 to 150) in lines of the kernel's log, by NVIDIA's catalogue of October 2025.

The sheet "Xid 144-150 Decode" has an action for each unit and error status, in a few cases by bits of the first
register, IntrInfo. Of an error without an entry only the line's own word is known, Fatal or Nonfatal.

    parse_line("NVRM: Xid (PCI:0000:3b:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 07 (0x004001c6 0x00000000 …)")
    # NvlinkXid("0000:3b:00", 149, "critical", "reset_gpu", "NETIR_LINK_EVT, link 07, status 0x0, reason 4")
"""

from __future__ import annotations

import re
from typing import NamedTuple

NUMBERS = range(144, 151)
_LINE = re.compile(
    r"NVRM: Xid \(PCI:([0-9a-fA-F:]{7,16})(?:\.[0-9])?\): (14[4-9]|150), (?:pid=[^,]{0,40}, name=[^,]{0,40}, )?"
    r"([A-Z0-9_/]{3,40}) ((?:Link )?Fatal|Nonfatal)\b[^(]{0,60}?(?:Link (-?[0-9]{1,3}) )?"
    r"\((0x[0-9a-fA-F]{1,8}) (0x[0-9a-fA-F]{1,8})"
)
_NONE = 0x8000_0000
# By unit: the error statuses that need a reset of the GPU, those for which XID 154 has the action, those to be ignored.
# A unit has two names where drivers before and since R575 write different ones.
_STATUSES: dict[tuple[str, ...], tuple[set[int], set[int], set[int]]] = {
    ("SAW_MVB",): ({0x2, 0x10}, set(), {0x1, 0x4, 0x8, 0x20}),
    ("RLW_CTRL",): (set(), set(), {_NONE}),
    ("RLW_REMAP",): ({0x40, 0x80}, {0x1, 0x2, 0x4, 0x8, 0x10, 0x20}, {0x100, 0x200, _NONE}),
    ("RLW_RSPCOL",): ({0x2}, set(), {0x1, _NONE}),
    ("RLW_RXPIPE",): (set(), set(), {0x1, 0x2, 0x4, 0x8, _NONE}),
    ("RLW_SRC_TRACK",): ({0x1, 0x10, 0x20}, {0x4, 0x8}, {0x2, _NONE}),
    ("RLW_TAGSTATE",): ({0x2, 0x2_0000, 0x10_0000}, set(), {0x1, 0x1_0000, _NONE}),
    ("TLW_CTRL", "TLW_RX", "TLW_RX_PIPE0", "TLW_RX_PIPE1", "TLW_TX", "TLW_TX_PIPE0", "TLW_TX_PIPE1"): (
        *({0x4}, set(), {0x1, 0x2, _NONE}),
    ),
    ("TREX",): (set(), set(), {0x1, _NONE}),
    ("NVLPW_CTRL", "NVLPW"): (set(), set(), {_NONE}),
    ("NETIR", "NETIR_INT"): ({0x0}, set(), set()),
    ("NETIR_BER_EVENT",): (set(), set(), {0x0, 0x1, 0x2, 0x3}),
    ("NETIR_LINK_EVT", "NETIR_LINK_DOWN"): ({0x0}, set(), set()),
    ("NETIR_MFDE_EVENT",): ({0x1, 0x4, 0x5, 0x7}, set(), {0x3}),
    ("MSE_WATCHDOG",): ({0x0}, set(), set()),
}
_BY_UNIT = {unit: statuses for units, statuses in _STATUSES.items() for unit in units}
# Why a link went down, in bits 20 to 25 of IntrInfo: those that need a reset, and those without an immediate action.
_DOWN_RESET = {0, 1, 2, 4, 10, *range(15, 19), 21, 22, *range(32, 38), 42, 43}
_DOWN_IGNORED = {38, 40}
# RLW_RXPIPE with these statuses is fatal where a bit of IntrInfo is set: bit 10 before R575, bit 7 since.
_PROMOTED = {0x1, 0x2, 0x4}


class NvlinkXid(NamedTuple):
    """`pci` is domain:bus:device in lower case; `text` has the unit, link and status."""

    pci: str
    number: int
    severity: str
    action: str
    text: str


def parse_line(line: str) -> NvlinkXid | None:
    """The error in a line, None where it has none of NVLink 5."""
    found = _LINE.search(line)
    if found is None:
        return None
    pci, number, unit, word, link, first, second = found.groups()
    information, status = int(first, 16), int(second, 16)
    reason = information >> 20 & 0x3F
    severity, action = _decode(unit.partition("/")[0], information, status, reason)
    if action == "see_other_xid" and severity == "unknown":
        severity = "warning" if word == "Nonfatal" else "critical"
    text = f"{unit}, link {link or '?'}, status {status:#x}" + (f", reason {reason}" if reason else "")
    return NvlinkXid(pci.lower(), int(number), severity, action, text)


def _decode(unit: str, information: int, status: int, reason: int) -> tuple[str, str]:
    """(severity, action) by the catalogue; `unknown` where it has no entry."""
    reset, evaluated, ignored = _BY_UNIT.get(unit, (set(), set(), set()))
    is_link_down = unit in ("NETIR_LINK_EVT", "NETIR_LINK_DOWN")
    if is_link_down and status == 0 and reason in _DOWN_IGNORED:
        return "warning", "watch"
    if reason and not (is_link_down and reason in _DOWN_RESET):
        return "unknown", "see_other_xid"
    if status in reset or (unit == "RLW_RXPIPE" and status in _PROMOTED and _is_promoted(information)):
        return "critical", "reset_gpu"
    if status in evaluated:
        # The application's channel is gone; XID 154 says what else to do.
        return "warning", "see_other_xid"
    if status in ignored:
        # Packets may be lost where the status could have been promoted.
        return ("warning" if unit == "RLW_RXPIPE" and status in _PROMOTED else "info"), "watch"
    return "unknown", "see_other_xid"


def _is_promoted(information: int) -> bool:
    is_since_r575 = information & 0x7F == 0x06
    return bool(information >> (7 if is_since_r575 else 10) & 1)
