"""Rows in memory as the step blocks that they came in: some 50 bytes a row, where as columns each takes 200 or more.

Many are unpacked at once, since NumPy costs per call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from goodput.wire.step_blocks import StepBlock
from goodput.wire.step_columns import StepColumns, decode

pack = msgspec.msgpack.Encoder().encode
unpack = msgspec.msgpack.Decoder(StepBlock).decode


class PackedRows(NamedTuple):
    """The last rows of a block, whose numbers are consecutive: those from `first` to `last`."""

    block: bytes  # a StepBlock in MessagePack
    width: int  # number of phases
    first: int
    last: int

    @property
    def count(self) -> int:
        """Number of rows."""
        return self.last - self.first + 1

    def beyond(self, number: int) -> PackedRows:
        """Without the rows up to `number`, which is below `last`."""
        return PackedRows(self.block, self.width, number + 1, self.last) if number >= self.first else self


def unpacked(parts: Sequence[PackedRows]) -> StepColumns:
    """The whole blocks of these rows, one after the other."""
    blocks = [unpack(part.block) for part in parts]
    return decode(blocks, max((part.width for part in parts), default=0))
