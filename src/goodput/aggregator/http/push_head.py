"""The head of a push as agents send it, read without a parser of HTTP.

A head with any other header, or one that is written in another way, is left to the parser. An agent sends the same head
each time but for the length of the body, and agents with one token all the same one: so `KnownHeads` keeps what was found.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from goodput.access.authentication import Authenticator
from goodput.access.responses import Refusal
from goodput.access.tokens import Access

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
_LENGTH = re.compile(rb"\r\n[Cc]ontent-[Ll]ength: (\d{1,8})\r\n")
KNOWN_MAX = 256


class KnownHeads:
    """Heads with which a token for all runs may push, by their bytes but for the length, until tokens are read again."""

    def __init__(self, authenticator: Authenticator):
        self._authenticator, self._known, self._mark = authenticator, {}, None

    def find(self, data: bytes) -> tuple[int, int, Access] | None:
        """Where the body begins, its length, and what the token permits; None for any other request."""
        end = data.find(b"\r\n\r\n", 0, BYTES_MAX)
        length = _LENGTH.search(data, 0, end + 2) if end > 0 else None
        if length is None:
            return None
        tokens = self._authenticator.tokens
        if tokens is not None and tokens.mark is not self._mark:
            self._known.clear()
            self._mark = tokens.mark
        first, last = length.span(1)
        key = data[:first] + data[last:end]
        access = self._known.get(key)
        if access is None:
            access = self._access(data)
            if access is None:
                return None
            if tokens is None or tokens.is_lasting(access):
                if len(self._known) >= KNOWN_MAX:
                    self._known.clear()
                self._known[key] = access
        return end + 4, int(length[1]), access

    def _access(self, data: bytes) -> Access | None:
        head = push_head(data)
        try:
            if head is None:
                return None
            self._authenticator.check_host(head.hosts)
            access = self._authenticator.authenticate(head.authorizations, "ingest")
        except Refusal:
            return None  # Others count it, and say why.
        return access if access.is_of_all else None  # A token for some runs has a budget.


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
