"""The calls of collectives in a trace, in columns: kernels with the arguments of `record_param_comms`, and gloo's spans.

Kineto gives a collective's kernels the arguments of the host's `record_param_comms` (libkineto/src/output_json.cpp). That
host event counts as the call itself where a trace has no kernels. gloo writes no such event: its annotations (`gloo:…`)
are the calls, without their process group, and with sizes only if shapes were recorded. 45 bytes a call.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Sequence
from itertools import islice
from math import prod
from operator import le
from typing import NamedTuple

from goodput.trace.operation_names import (
    CPP_BYTES,
    DTYPES,
    RECEIVED,
    operation_of,
    operation_of_kernel,
)

KEYS_MAX = 4096
TEXT_MAX, RANKS_TEXT_MAX, GROUP_RANKS_MAX = 64, 4096, 1 << 18
UNKNOWN = -1
BYTES_MAX = 1 << 50
# Events of record_param_comms that are no operation.
_NO_OPERATION = frozenset(("wait", "init", "", "startcoalescing", "endcoalescing"))
# Where a call was seen.
KERNEL, SPAN, HOST = range(3)


class Key(NamedTuple):
    """A process group and an operation. `size` 0 and `ranks` () are unknown; `name` "": the trace does not name the group."""

    name: str
    description: str
    ranks: tuple[int, ...]
    size: int
    operation: str


OTHER = Key("", "", (), 0, "other")


class Calls:
    """Columns: ns of start and end, the rank's bytes and sequence number (UNKNOWN), correlation, key, device or process."""

    def __init__(self):
        self.starts, self.ends = array("q"), array("q")
        self.sizes, self.sequences, self.correlations = array("q"), array("q"), array("q")
        self.keys, self.sources = array("H"), array("B")
        self.places = array("H")
        self._places: dict[int | str, int] = {}
        self.known: list[Key] = [OTHER]
        self._ids: dict[Key, int] = {OTHER: 0}
        self._by_arguments: dict[tuple, int] = {}

    def __len__(self) -> int:
        return len(self.starts)

    def add_kernel(self, name: str, start: int, end: int, device: int | str, correlation: int, args) -> None:
        """The kernel of a collective on a device."""
        args = args if type(args) is dict else {}
        if type(args.get("Collective name")) is str:
            key, size = self._described(args), _size(args)
        else:
            key, size = self._key(Key("", "", (), 0, operation_of_kernel(name))), UNKNOWN
        self._add(start, end, key, size, args.get("Seq"), correlation, device, KERNEL)

    def add_span(self, name: str, start: int, end: int, pid: int | str, args) -> None:
        """An annotation of a collective in progress, such as `gloo:all_reduce`."""
        key = self._key(Key("", "", (), 0, operation_of(name.partition(":")[2])))
        self._add(start, end, key, _size_of_shapes(args, self.known[key].operation), None, UNKNOWN, pid, SPAN)

    def add_host(self, start: int, end: int, pid: int | str, args) -> None:
        """A host event `record_param_comms`."""
        name = args.get("Collective name") if type(args) is dict else None
        if type(name) is not str or name.lower() in _NO_OPERATION:
            return
        self._add(start, end, self._described(args), _size(args), args.get("Seq"), UNKNOWN, pid, HOST)

    def move_kernels(self, device: int | str, ns: int) -> None:
        """Move the calls of a device's kernels later."""
        number = self._places.get(device)
        for i, (place, source) in enumerate(zip(self.places, self.sources, strict=True)):
            if place == number and source == KERNEL:
                self.starts[i] += ns
                self.ends[i] += ns

    def order(self) -> Sequence[int]:
        """The calls by their start."""
        starts = self.starts
        if all(map(le, starts, islice(starts, 1, None))):
            return range(len(starts))
        return array("I", sorted(range(len(starts)), key=starts.__getitem__))

    def of(self, place: int | str, has_devices: bool) -> Iterator[int]:
        """Indices of the calls of a device or process, by their start; a host's event counts only where there are no devices."""
        number = self._places.get(place)
        for i in self.order():
            if self.places[i] == number and (self.sources[i] == KERNEL) == has_devices:
                yield i

    def _add(self, start, end, key, size, sequence, correlation, place, source) -> None:
        self.starts.append(start)
        self.ends.append(end)
        self.sizes.append(size)
        self.sequences.append(sequence if type(sequence) is int and 0 <= sequence < 1 << 62 else UNKNOWN)
        self.correlations.append(correlation)
        self.keys.append(key)
        self.places.append(self._places.setdefault(place, len(self._places)))
        self.sources.append(source)

    def _described(self, args: dict) -> int:
        """The key of a call's arguments."""
        names = ("Process Group Name", "Process Group Description", "Process Group Ranks", "Group size")
        raw = (
            str(args["Collective name"])[:TEXT_MAX],
            *(str(args.get(name, ""))[:RANKS_TEXT_MAX] for name in names),
        )
        found = self._by_arguments.get(raw)
        if found is None:
            operation, name, description, ranks, _ = raw
            size = args.get("Group size")
            key = Key(
                name[:TEXT_MAX],
                description[:TEXT_MAX],
                _ranks(ranks),
                size if type(size) is int and 0 < size <= GROUP_RANKS_MAX else 0,
                operation_of(operation),
            )
            found = self._key(key)
            if len(self._by_arguments) < KEYS_MAX:
                self._by_arguments[raw] = found
        return found

    def _key(self, key: Key) -> int:
        found = self._ids.get(key)
        if found is None:
            if len(self.known) >= KEYS_MAX:
                return 0
            found = self._ids[key] = len(self.known)
            self.known.append(key)
        return found


def _ranks(text: str) -> tuple[int, ...]:
    """The ranks of a group; () where they are missing, or cut: "[0, 1, ..., 63]"."""
    try:
        found = json.loads(text) if text.startswith("[") else []
    except (ValueError, RecursionError):
        return ()
    return tuple(sorted(found)) if all(type(one) is int and one >= 0 for one in found) else ()


def _size(args: dict) -> int:
    """This rank's bytes, UNKNOWN where the arguments have no size."""
    operation = operation_of(str(args["Collective name"])[:TEXT_MAX])
    if operation == "barrier":
        return 0
    elements = args.get("Out msg nelems" if operation in RECEIVED else "In msg nelems")
    _, width = DTYPES.get(str(args.get("dtype"))[:TEXT_MAX], ("", 0))
    if type(elements) is not int or not width or not 0 <= elements * width < BYTES_MAX:
        return UNKNOWN
    return elements * width


def _size_of_shapes(args, operation: str) -> int:
    """This rank's bytes by the tensors that an annotation was given, UNKNOWN without shapes."""
    if operation == "barrier":
        return 0
    dims, types = (args.get(name) if type(args) is dict else None for name in ("Input Dims", "Input type"))
    if type(dims) is not list or type(types) is not list or len(dims) != len(types) or not dims:
        return UNKNOWN
    total = 0
    # The root of a scatter has a tensor for each rank, of which it keeps one.
    first = 1 if operation == "scatter" else len(dims)
    for shape, name in zip(dims[:first], types[:first], strict=True):
        width = CPP_BYTES.get(name) if type(name) is str else None
        if width is None or type(shape) is not list or any(type(one) is not int or one < 0 for one in shape):
            return UNKNOWN
        total += prod(shape) * width
    return total if total < BYTES_MAX else UNKNOWN
