"""Decodes messages of other processes on NATS, which may come from any client that has access to it."""

from __future__ import annotations

from typing import TypeVar

import msgspec

_T = TypeVar("_T")


def decode(decoder: msgspec.msgpack.Decoder[_T] | msgspec.json.Decoder[_T], body: bytes) -> _T:
    """Raises msgspec.DecodeError, also where msgspec raises another error: deep nesting, text that is not UTF-8."""
    try:
        return decoder.decode(body)
    except msgspec.DecodeError:
        raise
    except (RecursionError, ValueError) as error:
        raise msgspec.DecodeError(str(error)) from None
