"""Packets that the processors took from network devices, from /proc/net/softnet_stat.

A line for each processor that is online, of hexadecimal 32-bit numbers: processed, dropped since the backlog was full, and
times that the budget of a round was used up. The thirteenth field is the processor, since Linux 5.10; before, lines are told apart by
their order. Format: softnet_seq_show in net/core/net-procfs.c of the kernel.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from goodput_exporters.collector import ParseError

_HEX = r"([0-9a-fA-F]{1,8})"
# The first three fields, nine others, the processor, what later kernels add.
_LINE = re.compile(rf"\s*{_HEX}\s+{_HEX}\s+{_HEX}((?:\s+[0-9a-fA-F]{{1,8}})*)\s*")
_FIELDS_BETWEEN = 9
_WRAP = 1 << 32


class Softnet(NamedTuple):
    processed: int
    dropped: int
    squeezed: int


class SoftnetFile(NamedTuple):
    """Counts by processor, and the lines that are not in the format."""

    processors: dict[int, Softnet]
    malformed: int


class SoftnetTotals:
    """Sums over processors that go on when a processor's 32-bit count begins again at zero."""

    def __init__(self):
        self._last: dict[int, Softnet] = {}
        self._totals = Softnet(0, 0, 0)

    def add(self, processors: dict[int, Softnet]) -> Softnet:
        """Add what was counted since the last call, at first all; returns the totals."""
        (processed, dropped, squeezed), none = self._totals, Softnet(0, 0, 0)
        for cpu, now in processors.items():
            then = self._last.get(cpu, none)
            processed += (now[0] - then[0]) % _WRAP
            dropped += (now[1] - then[1]) % _WRAP
            squeezed += (now[2] - then[2]) % _WRAP
        self._totals = Softnet(processed, dropped, squeezed)
        # A processor that is offline for a while goes on where it was.
        self._last |= processors
        return self._totals


def parse_softnet(text: str) -> SoftnetFile:
    """Raises ParseError if no line is in the format."""
    processors, malformed = {}, 0
    for at, line in enumerate(text.splitlines()):
        match = _LINE.fullmatch(line)
        if match is None:
            malformed += 1
            continue
        rest = match[4].split(None, _FIELDS_BETWEEN + 1)
        cpu = int(rest[_FIELDS_BETWEEN], 16) if len(rest) > _FIELDS_BETWEEN else at
        processors[cpu] = Softnet(int(match[1], 16), int(match[2], 16), int(match[3], 16))
    if not processors:
        raise ParseError("no line of counts")
    return SoftnetFile(processors, malformed)
