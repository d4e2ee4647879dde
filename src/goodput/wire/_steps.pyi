from typing import Any

from goodput.wire.step_blocks import StepBlock

REVISION: int

def count_rows(blocks: list[StepBlock], phases: int, rows_max: int) -> int: ...
def decode(blocks: list[StepBlock], values: Any) -> tuple[tuple[int, int, int, int, int], int]: ...
def rows_after(
    wanted: list[tuple[list[Any], int]], columns: int, most: int
) -> tuple[bytes, bytes, int] | None: ...
def known_ranks(
    body: bytes, known: dict[bytes, Any], live_type: type, ends: tuple[str, ...], rows_max: int
) -> tuple | None: ...
def decode_page(
    block: bytes, phases: int, columns: int, rows_max: int, after: int, from_ns: int | None, most: int
) -> tuple[bytearray, int, int] | None: ...
