"""Loads pickles of plain values: None, booleans, numbers, texts, lists, tuples, and dicts with texts or integers as keys.

Nothing is imported or called, and unlike with `pickle` an index of the memo takes no memory and no key is deeply nested.
About 0.2 s a MB of a Flight Recorder's dump.
"""

from __future__ import annotations

import pickletools
from typing import Any

# Opcodes of which pickletools gives the value.
_SCALARS = frozenset(
    (
        *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "FLOAT", "BINFLOAT"),
        *("UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
    )
)
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY = {"EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_TUPLE": tuple}
_GETS = frozenset(("GET", "BINGET", "LONG_BINGET"))
_PUTS = frozenset(("PUT", "BINPUT", "LONG_BINPUT"))
_FIXED = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "APPEND": 1, "SETITEM": 2}
_SINCE_MARK = frozenset(("TUPLE", "LIST", "DICT", "APPENDS", "SETITEMS"))
_NOTHING = frozenset(("PROTO", "FRAME"))


def loads(raw: bytes) -> Any:
    """The value of a pickle. Raises ValueError with the place, and what Python raises for a wrong stack or memo."""
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[Any, Any] = {}
    for opcode, argument, at in pickletools.genops(raw):
        name = opcode.name
        if name in _GETS:
            stack.append(memo[argument])
        elif name in _SCALARS:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name == "MARK":
            marks.append(len(stack))
        elif name in _FIXED or name in _SINCE_MARK:
            begin = len(stack) - _FIXED[name] if name in _FIXED else marks.pop()
            _collect(name, stack, begin)
        elif name in _PUTS:
            memo[argument] = stack[-1]
        elif name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif name == "STOP":
            return stack.pop()
        elif name not in _NOTHING:
            what = f" {argument!r}" if isinstance(argument, str) else ""
            raise ValueError(f"byte {at} is {name}{what[:100]}, which no plain value has")
    raise ValueError("it has no end")


def _collect(name: str, stack: list[Any], begin: int) -> None:
    """Put what is on the stack from `begin` on into a container, which is before it or new."""
    if begin < 0:
        raise ValueError(f"{name} without values")
    values = stack[begin:]
    del stack[begin:]
    if name.startswith("TUPLE"):
        stack.append(tuple(values))
    elif name == "LIST":
        stack.append(values)
    elif name.startswith("APPEND"):
        stack[-1].extend(values)
    else:
        into = {} if name == "DICT" else stack[-1]
        for key, value in zip(values[::2], values[1::2], strict=True):
            if not isinstance(key, (str, int)):
                raise ValueError(f"a key is a {type(key).__name__}, not a text")
            into[key] = value
        if name == "DICT":
            stack.append(into)
