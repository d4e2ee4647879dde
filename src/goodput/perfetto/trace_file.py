"""Writes Perfetto's protobuf trace format, packet by packet: tracks with slices, instants and counters.

Only the few messages that are needed, by the fields of perfetto_trace.proto: TracePacket, TrackDescriptor, TrackEvent,
InternedData and ClockSnapshot. Names of events are interned, so a slice takes some 40 bytes. Events of a track have to be
written in order and nested; a slice's end before its beginning, or a beginning before the last end, is moved up to it.
Memory is one number per track and one entry per name, up to NAMES_MAX names.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Protocol

from goodput.protobuf_fields import bytes_field, text_field, varint

NAMES_MAX = 100_000  # Further names are written in full.
_SEQUENCE = 1
_SEQUENCE_CLEARED, _NEEDS_STATE = 1, 2
_BEGIN, _END, _INSTANT, _COUNTER = 1, 2, 3, 4
_EXPLICIT_ORDER = 3
_REALTIME, _BOOTTIME = 1, 6

Value = str | int | float | bool


class File(Protocol):
    def write(self, content: bytes, /) -> object: ...


class TraceWriter:
    """`file` takes bytes. Times are in ns; with `unix_ns`, the unix time of time 0, the trace has a wall clock too."""

    def __init__(self, file: File, unix_ns: int | None = None):
        self._file = file
        self._names: dict[str, int] = {}
        self._last_ns: dict[int, int] = {}
        self._tracks = 0
        self.moved = 0  # events whose time was moved, so that those of a track are in order
        self._packet(_int(13, _SEQUENCE_CLEARED))
        if unix_ns is not None:
            clocks = ((_BOOTTIME, 0), (_REALTIME, unix_ns))
            self._packet(
                bytes_field(6, b"".join(bytes_field(1, _int(1, at) + _int(2, ns)) for at, ns in clocks))
            )

    def process(self, name: str, pid: int, order: int) -> int:
        """A group of tracks; its track."""
        process = _int(1, pid) + text_field(6, name)
        return self._track(bytes_field(3, process) + _int(11, _EXPLICIT_ORDER) + _int(12, order))

    def track(self, parent: int, name: str, order: int = 0) -> int:
        return self._track(text_field(2, name) + _int(5, parent) + _int(12, order))

    def counter(self, parent: int, name: str, unit: str, order: int = 0) -> int:
        return self._track(
            text_field(2, name) + _int(5, parent) + _int(12, order) + bytes_field(8, text_field(6, unit))
        )

    def begin(self, track: int, at_ns: int, name: str, notes: Mapping[str, Value] | None = None) -> None:
        self._event(track, at_ns, _BEGIN, name, notes)

    def end(self, track: int, at_ns: int) -> None:
        self._event(track, at_ns, _END)

    def slice(
        self, track: int, begin_ns: int, end_ns: int, name: str, notes: Mapping[str, Value] | None = None
    ) -> None:
        self.begin(track, begin_ns, name, notes)
        self.end(track, end_ns)

    def instant(self, track: int, at_ns: int, name: str, notes: Mapping[str, Value] | None = None) -> None:
        """Instants need not be in order."""
        self._packet(
            self._head(at_ns), self._named(name, _int(9, _INSTANT) + _int(11, track) + self._notes(notes))
        )

    def count(self, counter: int, at_ns: int, value: float) -> None:
        self._packet(
            self._head(at_ns),
            bytes_field(11, _int(9, _COUNTER) + _int(11, counter) + _double_field(44, value)),
        )

    def _event(
        self, track: int, at_ns: int, kind: int, name: str = "", notes: Mapping[str, Value] | None = None
    ) -> None:
        before = self._last_ns.get(track, 0)
        if at_ns < before:
            self.moved += 1
            at_ns = before
        self._last_ns[track] = at_ns
        event = _int(9, kind) + _int(11, track) + self._notes(notes)
        self._packet(self._head(at_ns), self._named(name, event) if name else bytes_field(11, event))

    def _track(self, fields: bytes) -> int:
        self._tracks += 1
        self._packet(bytes_field(60, _int(1, self._tracks) + fields))
        return self._tracks

    def _head(self, at_ns: int) -> bytes:
        return _int(8, max(at_ns, 0)) + _int(13, _NEEDS_STATE)

    def _named(self, name: str, event: bytes) -> bytes:
        """The event with its name, whose text is in the first packet that uses it."""
        known = self._names.get(name)
        if known is not None:
            return bytes_field(11, event + _int(10, known))
        if len(self._names) >= NAMES_MAX:
            return bytes_field(11, event + text_field(23, name))
        known = self._names[name] = len(self._names) + 1
        return bytes_field(11, event + _int(10, known)) + bytes_field(
            12, bytes_field(2, _int(1, known) + text_field(2, name))
        )

    def _notes(self, notes: Mapping[str, Value] | None) -> bytes:
        if not notes:
            return b""
        return b"".join(bytes_field(4, text_field(10, key) + _value(value)) for key, value in notes.items())

    def _packet(self, *parts: bytes) -> None:
        self._file.write(bytes_field(1, b"".join(parts) + _int(10, _SEQUENCE)))


def _value(value: Value) -> bytes:
    """The value of a DebugAnnotation."""
    if isinstance(value, bool):
        return _int(2, value)
    if isinstance(value, int):
        return _int(4, value)
    if isinstance(value, float):
        return _double_field(5, value)
    return text_field(6, value)


def _double_field(field: int, value: float) -> bytes:
    return varint(field << 3 | 1) + struct.pack("<d", value)


def _int(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value & 0xFFFF_FFFF_FFFF_FFFF)
