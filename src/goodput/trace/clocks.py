"""Puts the events of each device on the host's clock, where launches prove that the two clocks differ.

No work begins before its launch, so the least shift with which that holds for all work of a device is a lower bound of how
far its clock is behind. The work is moved by it. No work ends after the host has waited for it, which bounds the shift from
above: a bound below the other means that the clocks drift, so that no single shift is right, and raises DriftError.

A clock that is ahead of the host's shows as work that ends after the end of a device's synchronization: it is moved
earlier, unless it would begin before its launch then."""

from __future__ import annotations

from array import array
from typing import NamedTuple

from goodput.account.text import duration_ns
from goodput.trace import names
from goodput.trace.columns import Columns, DeviceEvents
from goodput.trace.device_summary import Launches
from goodput.trace.steps import NO_LAUNCH
from goodput.trace.times import DURATION_NS_MAX

# How far after the end of a synchronization the profilers of healthy devices have put the end of work, and more.
NOISE_NS = 100_000
SHIFT_NS_MAX = 1 << 61


class DriftError(Exception):
    """The clocks of the host and a device drift; the message says which and by how much."""


class _Least(NamedTuple):
    """The least shift that launches prove, negative where all work begins later than it must."""

    ns: int
    early: int  # how many of the `known` events begin before their launches
    known: int


class _Most(NamedTuple):
    """The largest shifts that waits of the host allow: for the device, and for the device or a copy to the host."""

    device_ns: int | None
    any_ns: int | None


def align(columns: Columns, launches: Launches) -> None:
    """Move the events of each device to the host's clock. Raises DriftError."""
    for rows in columns.devices.values():
        launched, launchers = launches.earliest(rows)
        least = _least(rows, launched)
        if least is None:
            continue
        # Which device a call waited for is not in a trace.
        most = _most(columns, rows, launched, launchers) if len(columns.devices) == 1 else _Most(None, None)
        shift_ns = _shift(rows, least, most)
        _check_delays(rows, launched, shift_ns)
        if shift_ns:
            _move(columns, rows, shift_ns)
            rows.shift_ns, rows.early = shift_ns, least.early


def _least(rows: DeviceEvents, launched: array) -> _Least | None:
    least, early, known = NO_LAUNCH, 0, 0
    for at, start in zip(launched, rows.starts, strict=True):
        if at != NO_LAUNCH:
            least, early, known = max(least, at - start), early + (at > start), known + 1
    return _Least(least, early, known) if known else None


def _shift(rows: DeviceEvents, least: _Least, most: _Most) -> int:
    """By how much the device's events are moved later. Raises DriftError."""
    if least.ns > SHIFT_NS_MAX:
        raise DriftError(
            f"{rows.label} {rows.device} has events more than 70 years before their launches; no share would be right"
        )
    if least.ns > 0:
        if most.any_ns is not None and least.ns > most.any_ns + NOISE_NS:
            raise DriftError(
                f"the clocks of the host and of {rows.label} {rows.device} drift: {least.early} of {least.known} events of the "
                f"device begin up to {duration_ns(least.ns)} before their launches, but moved by that others end "
                f"{duration_ns(least.ns - most.any_ns)} after the host has waited for them; no share would be right"
            )
        return least.ns
    ahead = most.device_ns
    return ahead if ahead is not None and least.ns <= ahead < -NOISE_NS else 0


def _check_delays(rows: DeviceEvents, launched: array, shift_ns: int) -> None:
    """Raises DriftError if work would begin more than a day after its launch, which no queue of a device explains."""
    most = late = known = 0
    for at, start in zip(launched, rows.starts, strict=True):
        if at != NO_LAUNCH:
            delay = start + shift_ns - at
            most, late, known = max(most, delay), late + (delay > DURATION_NS_MAX), known + 1
    if late:
        raise DriftError(
            f"the times of {rows.label} {rows.device} contradict each other: moved so that no event begins before its launch, "
            f"{late} of {known} begin up to {duration_ns(most)} after theirs; no share would be right"
        )


def _most(columns: Columns, rows: DeviceEvents, launched: array, launchers: array) -> _Most:
    """The bounds by the waits of each thread for what this thread had launched before."""
    by_thread: dict[int, list[tuple[int, int, bool]]] = {}
    for wait in columns.waits:
        by_thread.setdefault(wait.thread, []).append((wait.start, wait.end, wait.for_device))
    if not by_thread:
        return _Most(None, None)
    order = array("I", sorted(range(len(launched)), key=launched.__getitem__))
    for_device: list[int] = []
    for_copy: list[int] = []
    for thread, waits in by_thread.items():
        place, reached, last = 0, None, None
        for start, end, is_device in sorted(waits):
            while place < len(order) and launched[order[place]] < start:
                i = order[place]
                place += 1
                if launched[i] != NO_LAUNCH and launchers[i] == thread:
                    reached, last = rows.ends[i] if reached is None else max(reached, rows.ends[i]), i
            if is_device and reached is not None:
                for_device.append(end - reached)
            elif last is not None and names.is_to_host(columns.names[rows.names[last]]):
                for_copy.append(end - rows.ends[last])
    return _Most(min(for_device, default=None), min([*for_device, *for_copy], default=None))


def _move(columns: Columns, rows: DeviceEvents, ns: int) -> None:
    rows.starts = array("q", (at + ns for at in rows.starts))
    rows.ends = array("q", (at + ns for at in rows.ends))
    rows.to_device = [(start + ns, end + ns, size) for start, end, size in rows.to_device]
    columns.calls.move_kernels(rows.device, ns)
