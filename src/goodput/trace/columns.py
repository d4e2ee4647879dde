"""Stores the events of a trace in columns, with only what the analysis needs.

Device events take 28 bytes each, launches 20, operators 24; names are stored once. Threads, devices, names and marks
are bounded; what exceeds a bound or cannot be used is counted in `problems` by reason, with the number of the first
such event."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from goodput.trace import foreign, names
from goodput.trace.calls import Calls
from goodput.trace.spans import Gathered
from goodput.trace.stream import BrokenEvent
from goodput.trace.times import DURATION_NS_MAX, TIME_NS_MAX, to_ns

THREADS_MAX, DEVICES_MAX, NAMES_MAX, MARKS_MAX, REASONS_MAX = 4096, 1024, 50_000, 10_000, 100
NAME_CHARACTERS_MAX = 300
BYTES_MAX = 1 << 50  # of a copy
# The kinds of events in Chrome's trace format; PyTorch writes some of them.
EVENT_KINDS = frozenset("XBEbneSTpFstfiICMPNODRcVv()")
LONG_GAP_NS = 1_000_000
LONG_SPANS_MAX = 1 << 14
WAITS_MAX = 100_000  # of the host for a device or a stream, some 100 bytes each
OTHER_NAMES = "(other names)"


@dataclass(slots=True)
class Thread:
    """A thread's spans by kind (`names.LOADER` ... `names.WEAK`)."""

    pid: int | str
    tid: int | str
    spans: dict[int, Gathered] = field(default_factory=dict)
    steps: bool = False
    backward: bool = False

    def add(self, kind: int, start: int, end: int) -> None:
        gathered = self.spans.get(kind)
        if gathered is None:
            gathered = self.spans[kind] = Gathered()
        gathered.add(start, end)


class DeviceEvents:
    """Columns of one device."""

    def __init__(self, device: int | str, label: str):
        self.device, self.label = device, label
        self.starts, self.ends, self.correlations = array("q"), array("q"), array("q")
        self.names = array("I")
        self.kinds = array("B")
        # Copies from host memory whose size is known: start, end, bytes.
        self.to_device: list[tuple[int, int, int]] = []
        # By how much the events were moved later, and how many began before their launches (clocks.py).
        self.shift_ns = self.early = 0


class LongSpans:
    """The host's spans of at least `floor_ns`, with their names; the floor doubles when there are too many."""

    def __init__(self):
        self.floor_ns = LONG_GAP_NS // 2
        self.starts, self.ends = array("q"), array("q")
        self.names, self.threads = array("I"), array("I")

    def add(self, start: int, end: int, name: int, thread: int) -> None:
        self.starts.append(start)
        self.ends.append(end)
        self.names.append(name)
        self.threads.append(thread)
        if len(self.starts) > LONG_SPANS_MAX:
            self._drop_shortest()

    def _drop_shortest(self) -> None:
        while len(self.starts) > LONG_SPANS_MAX // 2:
            self.floor_ns *= 2
            kept = [i for i, end in enumerate(self.ends) if end - self.starts[i] >= self.floor_ns]
            for name in ("starts", "ends", "names", "threads"):
                column = getattr(self, name)
                setattr(self, name, array(column.typecode, [column[i] for i in kept]))


@dataclass(slots=True)
class Mark:
    """A named span that bounds a step: ProfilerStep#N, or an optimizer's."""

    start: int
    end: int
    name: str
    thread: int


@dataclass(slots=True)
class Wait:
    """A call in which the host waits for all that a device has to do, or for a stream."""

    start: int
    end: int
    thread: int
    for_device: bool


class Columns:
    """The columns of one trace, filled by `add`."""

    def __init__(self):
        self.devices: dict[int | str, DeviceEvents] = {}
        self.threads: list[Thread] = []
        self.wires: dict[int | str, Gathered] = {}
        self.steps: list[Mark] = []
        self.optimizers: list[Mark] = []
        self.waits: list[Wait] = []
        self.launch_correlations, self.launch_times = array("q"), array("q")
        self.launch_threads = array("I")
        self.graph_correlations = array("q")
        self.long = LongSpans()
        self.calls = Calls()
        self.op_starts, self.op_ends = array("q"), array("q")
        self.op_names, self.op_threads = array("I"), array("I")
        self.names: list[str] = [OTHER_NAMES]
        self.problems: dict[str, list[int]] = {}
        self.foreign: str | None = None  # which other tool wrote the trace, if that is known
        self.events = self.used = 0
        self._first, self._last = TIME_NS_MAX, -TIME_NS_MAX  # of the host's events
        self._ids: dict[str, int] = {}
        self._thread_ids: dict[tuple, int] = {}

    def extent(self) -> tuple[int, int]:
        """When the first event begins and the last ends."""
        rows = [one for one in self.devices.values() if one.starts]
        first = min([self._first, *(min(one.starts) for one in rows)])
        return first, max([self._last, *(max(one.ends) for one in rows)])

    def add(self, event) -> None:
        self.events += 1
        if type(event) is not dict:
            self._problem("whose JSON is broken" if isinstance(event, BrokenEvent) else "not an object")
            return
        phase = event.get("ph")
        if phase != "X":
            # Flows, instants, counters and names have no duration and are ignored; B/E pairs would have one.
            if phase is None:
                self._problem("without `ph`")
            elif type(phase) is not str or phase not in EVENT_KINDS:
                self._problem("with a `ph` that no trace has")
            elif phase in ("B", "E"):
                self._problem("begin and end in two events (B, E), which PyTorch does not write")
            return
        category, pid = event.get("cat"), event.get("pid")
        role = names.role(category, pid)
        if role == names.UNKNOWN or category == "hpu_op":
            role = names.role_by_arguments(role, category, event.get("args"))
        if role == names.IGNORED:
            return
        if role == names.UNKNOWN:
            self.foreign = self.foreign or foreign.by_arguments(event.get("args"))
            self._problem(
                f"of an unknown category {str(category)[:60]!r}" if category else "without a category"
            )
            return
        start, duration = to_ns(event.get("ts")), to_ns(event.get("dur"))
        if (
            start is None
            or duration is None
            or not 0 <= duration <= DURATION_NS_MAX
            or not -TIME_NS_MAX < start < TIME_NS_MAX
        ):
            self._problem(_why(event, start, duration))
            return
        name = event.get("name")
        if type(name) is not str:
            if name is not None:
                self._problem("whose `name` is no text")
            name = "(no name)"
        end = start + duration
        self.used += 1
        args = event.get("args")
        if role in (names.KERNEL, names.COPY):
            rows = self._rows(category, pid, event.get("tid"), args)
            if rows is not None:
                self._device(rows, role, name, start, end, args)
        else:
            if start < self._first:
                self._first = start
            if end > self._last:
                self._last = end
            self._host(role, name, start, end, pid, event.get("tid"), args)

    def _rows(self, category, pid, tid, args) -> DeviceEvents | None:
        """The columns of an event's device."""
        device = args.get("device") if type(args) is dict else None
        if type(device) is not int:
            # Exports of the autograd profiler have the device in place of the thread.
            device = tid if pid == "CUDA functions" else pid
        if type(device) is not int:
            device = str(device)[:60]
        rows = self.devices.get(device)
        if rows is None:
            if len(self.devices) >= DEVICES_MAX:
                self._problem(f"of more than {DEVICES_MAX} devices")
                return None
            rows = self.devices[device] = DeviceEvents(device, names.device_label(category))
        return rows

    def _device(self, rows: DeviceEvents, role: int, name: str, start: int, end: int, args) -> None:
        correlation = engine = None
        if type(args) is dict:
            correlation, engine = args.get("correlation"), args.get("HW event name")
        kind = names.hpu_kind(engine)
        rows.starts.append(start)
        rows.ends.append(end)
        rows.correlations.append(_correlation(correlation))
        rows.names.append(self._name(name))
        kind = _kind_of(names.device_kind, role, name) if kind is None else kind
        rows.kinds.append(kind)
        if kind == names.COMMUNICATION:
            self.calls.add_kernel(name, start, end, rows.device, rows.correlations[-1], args)
        elif kind == names.COPYING and names.is_to_device(name) and type(args) is dict:
            size = args.get("bytes")
            if type(size) is int and 0 < size < BYTES_MAX:
                rows.to_device.append((start, end, size))

    def _host(self, role, name, start, end, pid, tid, args) -> None:
        kind = _kind_of(names.host_kind, role, name)
        place = self._thread(pid, tid)
        if place is None:
            self._problem(f"of more than {THREADS_MAX} threads")
            return
        thread = self.threads[place]
        if kind == names.STEP:
            thread.steps = True
            self._mark(self.steps, start, end, name, place)
            return
        if kind == names.WIRE:
            self.wires.setdefault(thread.pid, Gathered()).add(start, end)
            self.calls.add_span(name, start, end, thread.pid, args)
            return
        if name == names.PARAM_COMMS:
            self.calls.add_host(start, end, thread.pid, args)
        if kind == names.WEAK and name.startswith("Optimizer.step#"):
            self._mark(self.optimizers, start, end, name, place)
        if kind == names.SYNC and len(self.waits) < WAITS_MAX and (which := names.waits_for(name)):
            self.waits.append(Wait(start, end, place, which == names.DEVICE))
        thread.add(kind, start, end)
        if end - start >= self.long.floor_ns:
            self.long.add(start, end, self._name(name), place)
        if role == names.OPERATOR:
            self.op_starts.append(start)
            self.op_ends.append(end)
            self.op_names.append(self._name(name))
            self.op_threads.append(place)
            if not thread.backward and name.startswith("autograd::engine::"):
                thread.backward = True
        elif (
            role == names.RUNTIME
            and kind == names.BUSY
            and type(args) is dict
            and names.LAUNCHES.search(name)
        ):
            correlation = _correlation(args.get("correlation"))
            if correlation >= 0:
                self.launch_correlations.append(correlation)
                self.launch_times.append(start)
                self.launch_threads.append(place)
                if "GraphLaunch" in name:
                    self.graph_correlations.append(correlation)

    def _mark(self, marks: list[Mark], start: int, end: int, name: str, place: int) -> None:
        if len(marks) < MARKS_MAX:
            marks.append(Mark(start, end, name[:NAME_CHARACTERS_MAX], place))
        else:
            self._problem(f"step marks beyond the first {MARKS_MAX}")

    def _name(self, name: str) -> int:
        if len(name) > NAME_CHARACTERS_MAX:
            name = name[:NAME_CHARACTERS_MAX]
        found = self._ids.get(name)
        if found is None:
            if len(self.names) >= NAMES_MAX:
                return 0
            found = self._ids[name] = len(self.names)
            self.names.append(name)
        return found

    def _thread(self, pid, tid) -> int | None:
        key = (pid if type(pid) is int else str(pid)[:100], tid if type(tid) is int else str(tid)[:100])
        found = self._thread_ids.get(key)
        if found is None and len(self.threads) < THREADS_MAX:
            found = self._thread_ids[key] = len(self.threads)
            self.threads.append(Thread(*key))
        return found

    def _problem(self, why: str) -> None:
        if why not in self.problems and len(self.problems) >= REASONS_MAX:
            why = "for further reasons"
        found = self.problems.setdefault(why, [0, self.events])
        found[0] += 1


def _kind_of(classify, role: int, name: str) -> int:
    """The kind of an event; results for very long names are not cached."""
    return (classify if len(name) <= NAME_CHARACTERS_MAX else classify.__wrapped__)(role, name)


def _correlation(value) -> int:
    """The id that ties device work to its launch; -1 if there is none."""
    return value if type(value) is int and 0 < value < TIME_NS_MAX else -1


def _why(event: dict, start: int | None, duration: int | None) -> str:
    """Why the times of an event cannot be used."""
    if event.get("ts") is None:
        return "without `ts`"
    if event.get("dur") is None:
        return "without `dur`"
    if start is None:
        return "whose `ts` is no number"
    if duration is None:
        return "whose `dur` is no number"
    if duration < 0:
        return "with a negative `dur`"
    return "longer than a day" if duration > DURATION_NS_MAX else "further than 146 years from 0"
