"""Messages of the stream: parts of node reports, by partition and of bounded size.

Processes of two versions of the program share a stream while it is upgraded, and messages outlive the one that wrote
them. Decoders skip fields that they do not know, so a new field with a default needs nothing; a change that the version
before would misread raises VERSION, and a program leaves what is of a later VERSION in the stream for one that knows it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from goodput.access.tokens import ALL, EVERYTHING, Access
from goodput.aggregator.ingest.pushed_steps import PushedSteps, decode_steps, in_parts
from goodput.aggregator.stream.decoding import decode
from goodput.aggregator.stream.partitions import partition_of, partition_of_node
from goodput.wire import schema
from goodput.wire.step_columns import encode

VERSION = 1  # of PushMessage
# Rows of one message: 1 MB at most, however large their cells are.
ROWS_MAX = 2048
# What MessagePack adds to a part of a list.
PART_BYTES = 8


class PushMessage(msgspec.Struct, frozen=True):
    """A part of a push: the report in MessagePack, when it arrived (unix ns of the ingest worker), and by which token.

    `node` is the report's, `clock` the bounds on how far its clock is ahead of the worker's, as the worker knows them from
    all pushes of the node: an aggregator sees those of its partitions alone. `runs` are the patterns of the token; its scope is checked, and ranks of other runs are left
    out. `version` is this record's, `report_version` the report's; the defaults stand for programs before these fields.
    """

    node: str
    report: bytes
    arrived_ns: int
    token: str = ""
    token_id: str = ""
    runs: tuple[str, ...] = ALL
    version: int = 1
    report_version: int = 2
    clock: tuple[int, int] | None = None

    def access(self) -> Access:
        if "*" in self.runs and not self.token_id:
            return EVERYTHING
        return Access(self.token, ("ingest",), self.runs, self.token_id)


class Answer(msgspec.Struct, frozen=True):
    """What an aggregator answers to a push that an ingest worker has already acknowledged: as in schema.Ack."""

    node: str
    rejected: list[schema.Rejection] = []
    wanted: list[schema.StackRequest] = []


class TooNew(Exception):
    """A message that a later version of the program wrote, which this one would misread."""


class _Versions(msgspec.Struct):
    """The fields that every version of PushMessage has."""

    version: int = 1
    report_version: int = 2


_encoder = msgspec.msgpack.Encoder()
_versions_decoder = msgspec.msgpack.Decoder(_Versions)
_push_decoder = msgspec.msgpack.Decoder(PushMessage)
_answer_decoder = msgspec.msgpack.Decoder(Answer)


def encoded(message: PushMessage | Answer) -> bytes:
    return _encoder.encode(message)


def decode_push(body: bytes) -> PushMessage:
    """Raises TooNew, msgspec.DecodeError."""
    try:
        message = decode(_push_decoder, body)
    except msgspec.ValidationError:
        _check_versions(decode(_versions_decoder, body))
        raise
    _check_versions(message)
    return message


def _check_versions(of: PushMessage | _Versions) -> None:
    if of.version > VERSION or of.report_version > schema.VERSION:
        raise TooNew(
            f"a push of stream version {of.version} and report version {of.report_version}; this program reads up to "
            f"{VERSION} and {schema.VERSION}"
        )


def decode_answer(body: bytes) -> Answer:
    """Raises msgspec.DecodeError."""
    return decode(_answer_decoder, body)


def message_id(report: bytes) -> str:
    """The id by which the stream recognises a part that is published again, and stores it once."""
    return hashlib.blake2b(report, digest_size=16).hexdigest()


class TooLarge(Exception):
    """A rank report, or an event, that fits in no message."""

    def __init__(self, report: schema.RankReport, size: int, bytes_max: int):
        super().__init__(f"{schema.name_of(report)}: {size} bytes without its steps, {bytes_max} at most")
        self.report = report


class _Piece(NamedTuple):
    field: str  # of the node report: ranks, health or stacks
    value: msgspec.Struct
    size: int


def split(
    report: schema.NodeReport, ranks: Iterable[schema.RankReport], count: int, bytes_max: int
) -> Iterator[tuple[int, bytes]]:
    """(partition, encoded node report) of a checked report with these ranks, each at most `bytes_max` long.

    A health event goes to the partitions of the runs that it hit, or to the node's where it hit none. A report
    with nothing in it goes to the node's, so that its clock is known. Raises TooLarge, SchemaError.
    """
    home = partition_of_node(report.node, count)
    pieces: dict[int, list[_Piece]] = {}
    for rank in ranks:
        partition = partition_of(rank.identity.run, count)
        pieces.setdefault(partition, []).extend(_of_rank(rank, bytes_max))
    for event in report.health:
        hit = {partition_of(run, count) for run, _ in event.hits} or {home}
        piece = _piece("health", event)
        for partition in hit:
            pieces.setdefault(partition, []).append(piece)
    for stack in report.stacks:
        pieces.setdefault(partition_of(stack.of.run, count), []).append(_piece("stacks", stack))
    # Steps of version 1 were put into blocks when they were checked.
    bare = replace(report, version=schema.VERSION, ranks=[], health=[], stacks=[])
    room = bytes_max - len(schema.encode(bare))
    for partition, some in (pieces or {home: []}).items():
        for fields in _packed(some, room):
            yield partition, schema.encode(replace(bare, **fields))


def _piece(field: str, value: msgspec.Struct) -> _Piece:
    return _Piece(field, value, len(schema.encode(value)) + PART_BYTES)


def _packed(pieces: list[_Piece], room: int) -> Iterator[dict[str, list]]:
    fields: dict[str, list] = {}
    left = room
    for piece in pieces:
        if piece.size > left and fields:
            yield fields
            fields, left = {}, room
        fields.setdefault(piece.field, []).append(piece.value)
        left -= piece.size
    yield fields


def _of_rank(rank: schema.RankReport, bytes_max: int) -> Iterator[_Piece]:
    """A rank report whole, or its steps and events in parts. Raises TooLarge, SchemaError."""
    # Of a report that is near the limit half a message is left for others'.
    whole = _piece("ranks", rank)
    if whole.size <= bytes_max // 2:
        yield whole
        return
    bare = replace(rank, blocks=[], events=[])
    head = _piece("ranks", bare)
    if head.size > bytes_max // 4:
        raise TooLarge(rank, head.size, bytes_max // 4)
    (steps,) = decode_steps([replace(rank, events=[])])
    if not isinstance(steps, PushedSteps):
        raise steps
    for part, some in in_parts(bare, steps, ROWS_MAX):
        blocks = [encode(some.values)] if some.values.shape[1] else []
        yield _piece("ranks", replace(part, blocks=blocks, events=[]))
    events, size = [], head.size
    for event in rank.events:
        more = len(schema.encode(event)) + PART_BYTES
        if events and size + more > bytes_max // 2:
            yield _Piece("ranks", replace(bare, events=events), size)
            events, size = [], head.size
        events.append(event)
        size += more
    if events:
        yield _Piece("ranks", replace(bare, events=events), size)
