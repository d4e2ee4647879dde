"""A simulated device: it executes queues with its own clock, and knows the truth that the device clock has to find.

In: what a host does, in order: time it spends, kernels and copies it launches on streams, waits of one stream for
another, events. Out: when events complete, and per step and phase the time that the compute stream spent on what was
launched in that phase, or idle while the host was in it. All times are whole nanoseconds of one clock, `now`, which
only `host` moves; with `clock` given, `now` is that clock, and nothing is simulated but the device.

How the recorder gets that clock: `pure_sdk` imports a second copy of the SDK's modules in their Python version, whose
`perf_counter_ns` is then replaced by `Device.now`. The compiled twin reads the real clock, and so is tested with a
device in real time.
"""

from __future__ import annotations

import importlib
import os
import sys
from bisect import bisect_left
from collections import deque
from types import ModuleType, SimpleNamespace

from goodput.rank_page import page
from goodput.rank_page.device_steps import apportion

MODULES = (
    "goodput.sdk.recorder.plain",
    "goodput.sdk.recorder.hot_path",
    "goodput.sdk.recorder.recorder",
    "goodput.sdk.recorder.phase",
    "goodput.sdk.recorder.steps",
)


class Stream:
    def __init__(self):
        self.free_ns = 0  # when what is queued so far will have been executed
        self.queue: deque[int] = deque()  # when each queued item will have been


class Event:
    def __init__(self):
        self.at_ns: int | None = None


class Device:
    """`queue_max` items fit into a stream's queue; the host waits while it is full."""

    def __init__(self, queue_max: int | None = None, clock=None, start_ns: int = 10**12):
        self._now_ns, self._clock, self.queue_max = start_ns, clock, queue_max
        self.compute, self.side = Stream(), Stream()
        self.stream = self.compute
        self.capturing, self.device, self.stuck = False, 0, False
        self.spans: list[tuple[int, int, str]] = []  # (begin, end, phase launched in) of the compute stream
        self.phase = "none"

    def now(self) -> int:
        return self._clock() if self._clock else self._now_ns

    def host(self, ns: int) -> None:
        """The host is busy, or sleeps."""
        self._now_ns += ns

    def launch(self, ns: int, after: int = 0) -> None:
        """Queue something that takes so long on the current stream, not to begin before `after`."""
        stream, now = self.stream, self.now()
        while stream.queue and stream.queue[0] <= now:
            stream.queue.popleft()
        if self.queue_max is not None and len(stream.queue) >= self.queue_max:
            self._now_ns = now = stream.queue[-self.queue_max]
        begin = max(stream.free_ns, now)
        end = max(begin, after) + ns
        if stream is self.compute:
            self.spans.append((begin, end, self.phase))
        stream.free_ns = end
        stream.queue.append(end)

    def wait_for(self, other: Stream) -> None:
        """The current stream goes on when `other` has done what is queued there so far (record, wait_event)."""
        self.launch(0, after=other.free_ns)

    def record(self, event: Event) -> None:
        event.at_ns = max(self.stream.free_ns, self.now())

    def is_complete(self, event: Event) -> bool:
        return not self.stuck and event.at_ns <= self.now()


class Backend:
    """The device clock's backend. `grain_ns` is the resolution of events' times, as float milliseconds have one."""

    def __init__(self, device: Device, grain_ns: int = 1):
        self.device, self.grain_ns = device, grain_ns
        self.made = self.recorded = self.queried = 0
        self.fail_at: int | None = None
        self.in_use = True
        self.stream, self.number = None, None

    def bind(self) -> bool:
        if self.in_use and self.number in (None, self.device.device):
            self.stream, self.number = self.device.stream, self.device.device
        return self.in_use

    def may_record(self) -> bool:
        device = self.device
        return device.stream is self.stream and device.device == self.number and not device.capturing

    def capturing(self) -> bool:
        return self.device.capturing

    def new_event(self) -> Event:
        self.made += 1
        return Event()

    def record(self, event: Event) -> None:
        assert not self.device.capturing and self.device.stream is self.stream
        self.recorded += 1
        if self.fail_at is not None and self.recorded >= self.fail_at:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        self.device.record(event)

    def query(self, event: Event) -> bool:
        assert not self.device.capturing
        self.queried += 1
        return self.device.is_complete(event)

    def elapsed_ns(self, begin: Event, end: Event) -> int:
        assert begin.at_ns <= self.device.now() and end.at_ns <= self.device.now(), "this would have to wait"
        return (end.at_ns - begin.at_ns) // self.grain_ns * self.grain_ns


def pure_sdk(monkeypatch, device: Device) -> SimpleNamespace:
    """Recorder, Phase and Step of a copy of the SDK in Python that reads the device's clock."""
    before = {name: sys.modules.pop(name) for name in MODULES if name in sys.modules}
    monkeypatch.setitem(sys.modules, "goodput.sdk.recorder._fast", None)
    try:
        clock, _, recorder, phase, steps = (importlib.import_module(name) for name in MODULES)
    finally:
        for name in MODULES:
            _put_back(name, before.get(name))
    for module in (clock, recorder, steps):
        module.perf_counter_ns = device.now
    monkeypatch.setattr("goodput.rank_page.reader.monotonic_ns", device.now)
    return SimpleNamespace(
        Recorder=recorder.Recorder, Phase=phase.Phase, Step=steps.Step, steps=steps.steps, clock=clock
    )


def _put_back(name: str, before: ModuleType | None) -> None:
    """Import finds the module again that it found before, or none."""
    package, _, own = name.rpartition(".")
    if before is not None:
        sys.modules[name] = before
        setattr(sys.modules[package], own, before)
    elif sys.modules.pop(name, None) is not None:
        delattr(sys.modules[package], own)


class Trainer:
    """A step loop on a simulated device with a page of its own, and the truth of each step.

    with trainer.step():
        with trainer.phase("forward"):
            device.launch(5_000)
    """

    def __init__(self, monkeypatch, directory, device: Device, backend: Backend | None = None, **given):
        from goodput.sdk.device.device_clock import DeviceClock

        sdk = pure_sdk(monkeypatch, device)
        self.device, self.backend = device, backend or Backend(device)
        identity = identity_at(device.now(), **given)
        os.makedirs(directory, exist_ok=True)
        self.writer = page.Writer(str(directory), identity)
        self.recorder = sdk.Recorder()
        self.recorder.open(self.writer.words, device.now(), self.writer.fd)
        self.phases = {name: sdk.Phase(self.recorder, name, i) for i, name in enumerate(page.PHASES) if i}
        self.recorder.used.extend(range(1, len(page.PHASES)))
        self.sdk = sdk
        self.clock = DeviceClock(self.recorder, self.backend, device.now)
        self.clock.attach()
        self.hosted: list[tuple[int, int, str]] = []  # (begin, end, phase) of the host
        self.truths: list[dict[str, int]] = []
        device.host(10_000_000)  # No training begins with its first step.
        self._since_ns = device.now()
        self._bounds: list[tuple[int, int, int, int]] = []

    def phase(self, name: str):
        return _Both(self, name)

    def step(self):
        return _StepToo(self)

    def mark(self, phase: str) -> None:
        """The host goes into a phase."""
        now = self.device.now()
        self.hosted.append((self._since_ns, now, self.device.phase))
        self._since_ns, self.device.phase = now, phase

    def close(self) -> None:
        self.mark("none")
        # The end of a step on the device is where the compute stream had got to with what was queued by then.
        for begin_ns, end_ns, _, _ in self._bounds:
            self.truths.append(self._truth(begin_ns, end_ns))

    def _truth(self, begin_ns: int, end_ns: int) -> dict[str, int]:
        """The compute stream's time from `begin_ns` to `end_ns`: busy by where it was launched, idle by the host."""
        found: dict[str, int] = {}

        def count(phase, since, until):
            ns = min(until, end_ns) - max(since, begin_ns)
            if ns > 0:
                found[phase] = found.get(phase, 0) + ns

        at = begin_ns
        for since, until, phase in [*within(self.device.spans, begin_ns, end_ns), (end_ns, end_ns, "none")]:
            for hosted_since, hosted_until, hosted in within(self.hosted, at, since):  # Idle.
                count(hosted, max(hosted_since, at), min(hosted_until, since))
            count(phase, max(since, at), until)
            at = max(at, until)
        return found


def within(spans: list, begin_ns: int, end_ns: int) -> list:
    """Those of some spans in order that touch a time."""
    first = bisect_left(spans, begin_ns, key=lambda span: span[1])
    return spans[first : max(bisect_left(spans, end_ns + 1, key=lambda span: span[0]), first)]


class _Both:
    """A phase of the SDK's, and of the truth."""

    def __init__(self, trainer: Trainer, name: str):
        self.trainer, self.name, self.phase = trainer, name, trainer.phases[name]

    def __enter__(self):
        self.before = self.trainer.device.phase
        self.trainer.mark(self.name)
        self.phase.__enter__()

    def __exit__(self, *raised):
        self.phase.__exit__(*raised)
        self.trainer.mark(self.before)


class _StepToo:
    def __init__(self, trainer: Trainer):
        self.trainer = trainer

    def _place(self) -> int:
        """Where the compute stream will be when it comes to what is queued now."""
        return max(self.trainer.device.compute.free_ns, self.trainer.device.now())

    def __enter__(self):
        self.began = self._place(), self.trainer.device.now()
        self.step = self.trainer.sdk.Step(self.trainer.recorder, None, 0)
        self.step.__enter__()

    def __exit__(self, *raised):
        device_ns, host_ns = self.began
        self.trainer._bounds.append((device_ns, self._place(), host_ns, self.trainer.device.now()))
        self.step.__exit__(*raised)


def identity_at(now_ns: int, **given) -> dict:
    """An identity with all its fields."""
    from goodput.sdk.startup.resolve_identity import resolve_identity

    found = resolve_identity({"run": "d", **given}, {}, lambda text: None, fresh=True)
    return {**found, "start_mono_ns": now_ns, "start_unix_ns": 10**18 + now_ns}


def scaled(truth: dict[str, int], length: int) -> dict[str, int]:
    """The truth of a step, brought to the length that the host's clock gave it."""
    parts = apportion(length, list(truth.values()))
    return {name: ns for name, ns in zip(truth, parts, strict=True) if ns}


def split(record, before) -> dict[str, int]:
    """What the page says of a step: ns per phase inside it."""
    zeros = (0,) * len(record.totals)
    totals, outside = (before.totals, before.outside) if before else (zeros, zeros)
    columns = zip(page.PHASES, record.totals, totals, record.outside, outside, strict=True)
    return {name: ns for name, t, u, o, p in columns if (ns := t - u - (o - p))}
