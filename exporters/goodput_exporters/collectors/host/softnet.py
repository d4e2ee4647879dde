"""Packets that the processors took from network devices, from /proc/net/softnet_stat.

A line for each processor that is online, of hexadecimal 32-bit numbers: processed, dropped since the backlog was full, and
times that the budget of a round was used up. The thirteenth field is the processor, since Linux 5.10; before, lines are told apart by
their order. Format: softnet_seq_show in net/core/net-procfs.c of the kernel.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from goodput_exporters.collector import ParseError

_FIELD = re.compile(r"[0-9a-fA-F]{1,8}")
_PROCESSOR_FIELD = 12
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
        for cpu, counts in processors.items():
            before = self._last.get(cpu, Softnet(0, 0, 0))
            grown = [(now - then) % _WRAP for now, then in zip(counts, before, strict=True)]
            self._totals = Softnet(*(total + more for total, more in zip(self._totals, grown, strict=True)))
        # A processor that is offline for a while goes on where it was.
        self._last |= processors
        return self._totals


def parse_softnet(text: str) -> SoftnetFile:
    """Raises ParseError if no line is in the format."""
    processors, malformed = {}, 0
    for at, line in enumerate(text.splitlines()):
        words = line.split()
        if len(words) < 3 or not all(map(_FIELD.fullmatch, words)):
            malformed += 1
            continue
        numbers = [int(word, 16) for word in words]
        cpu = numbers[_PROCESSOR_FIELD] if len(numbers) > _PROCESSOR_FIELD else at
        processors[cpu] = Softnet(*numbers[:3])
    if not processors:
        raise ParseError("no line of counts")
    return SoftnetFile(processors, malformed)
