"""Reads what can be read of a MessagePack value that is not what it should be, and says where it is wrong."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec import Struct

from goodput.wire.identity import clean_text

# Optional fields that carry a rank's record, not a description: without them its report would be wrong.
_RECORDS = ("steps", "events", "blocks")
_EMPTY_TEXT, _MINUS_ONE = b"\xa0", b"\xff"


class _Names(Struct):
    """A rank report of which only the names are of interest."""

    identity: dict[str, msgspec.Raw] = {}


_names_decoder = msgspec.msgpack.Decoder(_Names)


def right_fields(part: type[Struct], fields: dict) -> dict:
    """The fields without optional ones of a wrong type; whole numbers may be floats."""
    right = dict(fields)
    for field in msgspec.structs.fields(part):
        if field.required or field.name not in fields or field.name in _RECORDS:
            continue
        try:
            right[field.name] = msgspec.convert(_whole(fields[field.name]), field.type)
        except msgspec.ValidationError:
            del right[field.name]
    return right


def _whole(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def names_of(report: msgspec.Raw) -> tuple[str, int, str]:
    """Run, rank and host of an encoded rank report: "" and -1 for what is missing or of a wrong type."""
    try:
        fields = _names_decoder.decode(report).identity
    except (ValueError, RecursionError):
        return "", -1, ""
    try:
        rank = msgspec.msgpack.decode(fields.get("rank", _MINUS_ONE), type=int)
    except msgspec.ValidationError:
        rank = -1
    return _text(fields.get("run", _EMPTY_TEXT)), rank, _text(fields.get("host", _EMPTY_TEXT))


def _text(value: msgspec.Raw | bytes) -> str:
    try:
        return msgspec.msgpack.decode(value, type=str)
    except UnicodeDecodeError as error:
        return error.object.decode("utf-8", "replace")
    except msgspec.ValidationError:
        return ""


def not_utf8(error: UnicodeDecodeError) -> str:
    return f"not UTF-8: its byte {error.start + 1} is 0x{error.object[error.start]:02x}"


def path_of_text(value: msgspec.Raw, depth: int = 4) -> str:
    """Where in a value a text is not UTF-8, up to so many levels down: ".identity.run"."""
    for name, part in _parts(value):
        try:
            msgspec.msgpack.decode(part)
        except UnicodeDecodeError:
            return name + (path_of_text(part, depth - 1) if depth > 1 else "")
        except (ValueError, RecursionError):
            continue
    return ""


def _parts(value: msgspec.Raw) -> Iterator[tuple[str, msgspec.Raw]]:
    """The entries of a map or of an array."""
    try:
        for name, part in msgspec.msgpack.decode(value, type=dict[str, msgspec.Raw]).items():
            yield f".{clean_text(name, 32)}", part
    except ValueError:
        try:
            for at, part in enumerate(msgspec.msgpack.decode(value, type=list[msgspec.Raw])):
                yield f"[{at}]", part
        except ValueError:
            return
