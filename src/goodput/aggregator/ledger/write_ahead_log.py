"""What of an SQLite ledger's write-ahead log SQLite cannot use.

It reads the log up to the first frame whose checksum is wrong, and says nothing of what follows. After a power failure that
is the transaction that was not committed yet; commits behind it were acknowledged, and are lost by damage.
"""

from __future__ import annotations

import struct

import numpy as np

# https://www.sqlite.org/fileformat2.html#walformat
_HEADER, _FRAME_BYTES = struct.Struct(">8I"), 24
_LITTLE, _BIG = 0x377F0682, 0x377F0683  # by the order of the bytes in the words of checksums
_BYTES_MAX = 256 << 20  # more is not looked at; a ledger's log has some 16 MB


def problem(file: str) -> str:
    """What of the log of an SQLite ledger will not be read when that is opened, or nothing. Reads all of the log."""
    try:
        with open(f"{file}-wal", "rb") as log:
            data = log.read(_BYTES_MAX)
            log.seek(0)
            if log.read(_HEADER.size) != data[: _HEADER.size]:
                return ""  # a program is writing it
    except OSError:
        return ""
    if len(data) < _HEADER.size:
        return ""
    magic, _, page_bytes, _, *salts, first, second = _HEADER.unpack_from(data)
    words = np.frombuffer(data[:24], "<u4" if magic == _LITTLE else ">u4").astype(np.uint32)
    is_whole = magic in (_LITTLE, _BIG) and (_added(words[None])[0] == (first, second)).all()
    if not is_whole or not 512 <= page_bytes <= 65_536 or page_bytes % 8:
        return "its write-ahead log (-wal) has a damaged header, so nothing of it is read"
    commits = _commits_behind_damage(data, page_bytes, salts, "<u4" if magic == _LITTLE else ">u4")
    # One may be of a transaction that was being written when the power failed.
    if commits < 2:
        return ""
    return f"its write-ahead log (-wal) is damaged, so at least {commits - 1} transactions at its end are not read"


def _commits_behind_damage(data: bytes, page_bytes: int, salts: list[int], order: str) -> int:
    """How many commits the log has from the first frame on that is wrong."""
    frame_bytes = _FRAME_BYTES + page_bytes
    count = (len(data) - _HEADER.size) // frame_bytes
    frames = np.frombuffer(data, np.uint8, count * frame_bytes, _HEADER.size).reshape(count, frame_bytes)
    heads = np.ascontiguousarray(frames[:, :_FRAME_BYTES]).view(">u4").astype(np.uint32)
    is_ours = (heads[:, 2:4] == np.array(salts, np.uint32)).all(axis=1)
    added = _added(
        np.ascontiguousarray(np.delete(frames, slice(8, _FRAME_BYTES), axis=1)).view(order).astype(np.uint32)
    )
    # Each checksum goes on from the one before.
    before = np.vstack([np.array(_HEADER.unpack_from(data)[6:], np.uint32)[None], heads[:, 4:6]])[:-1]
    growth = _powers((8 + page_bytes) // 8)[-1]
    is_right = is_ours & ((before @ growth.T + added) == heads[:, 4:6]).all(axis=1)
    read = count if is_right.all() else int(np.argmin(is_right))
    return int((is_ours & (heads[:, 1] > 0))[read:].sum())


def _added(words: np.ndarray) -> np.ndarray:
    """What each row of words adds to a checksum, of which a and b become a + b + x and a + 2 b + x + y by words x and y."""
    powers = _powers(words.shape[1] // 2)[:-1][::-1]
    by_pair = powers @ np.array([[1, 0], [1, 1]], np.uint32)
    return words @ np.moveaxis(by_pair, 1, 2).reshape(words.shape[1], 2)


def _powers(count: int) -> np.ndarray:
    """The powers 0 to `count` of the growth by a pair of words."""
    step, found = np.array([[1, 1], [1, 2]], np.uint32), [np.eye(2, dtype=np.uint32)]
    for _ in range(count):
        found.append(step @ found[-1])
    return np.array(found)
