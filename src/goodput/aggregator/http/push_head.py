"""The head of a push as agents send it, read without a parser of HTTP, in 5 us.

A head with any other header, or one that is written in another way, is left to the parser.
"""

from __future__ import annotations

import re
from typing import NamedTuple

BEGIN = b"POST /api/v1/ingest HTTP/1.1\r\n"
# A head that is larger, or of which the end did not come with the beginning, is left to the parser too.
BYTES_MAX = 2048
_NAMES = frozenset(
    (
        *(b"host", b"accept", b"accept-encoding", b"connection", b"user-agent"),
        *(b"content-type", b"content-length", b"authorization"),
    )
)
_PRINTABLE = re.compile(rb"[\x20-\x7e]*")


class PushHead(NamedTuple):
    body_at: int
    length: int  # of the body
    hosts: list[str]
    authorizations: list[bytes]


def push_head(data: bytes) -> PushHead | None:
    """None for what is left to the parser."""
    end = data.find(b"\r\n\r\n", 0, BYTES_MAX)
    if end < 0 or not data.startswith(BEGIN):
        return None
    found: dict[bytes, bytes] = {}
    for line in data[len(BEGIN) : end].split(b"\r\n"):
        name, _, value = line.partition(b": ")
        name = name.lower()
        if name not in _NAMES or name in found or not _PRINTABLE.fullmatch(value):
            return None
        found[name] = value
    length = found.get(b"content-length", b"")
    if not (length.isdigit() and len(length) < 9) or found.get(b"connection", b"keep-alive") != b"keep-alive":
        return None
    hosts = [found[b"host"].decode()] if b"host" in found else []
    authorizations = [found[b"authorization"]] if b"authorization" in found else []
    return PushHead(end + 4, int(length), hosts, authorizations)
