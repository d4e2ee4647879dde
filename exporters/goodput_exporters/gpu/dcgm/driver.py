"""NVIDIA's DCGM: activity of SMs, tensor cores and memory on every data-centre GPU, through NVIDIA's own bindings.

In: a connection (dcgm_link.py) to a running nv-hostengine. Out: `Sample`s of all GPUs and MIG instances; what the
fields mean is dcgm_fields.py.

A host engine inside this process starts only where GOODPUT_DCGM_EMBEDDED=1 asks for it. It would bring threads and
memory, and it would hold the profiling counters against an engine, a dcgm-exporter or a profiler that comes later; an
engine that runs already has them and is shared. A node without one is what the nvml driver is for.

Profiling fields may be refused (another profiler has the counters, or the GPU has none): all else goes on, the sample
in which it was tried says so, and it is tried again every minute. When the host engine goes away `sample` raises
CollectorError and the next call connects again. The values' own times say what activities are the mean of: a watch's
interval, `window_ns`, up to `monotonic_ns`; two samples with the same `monotonic_ns` are one measurement. XIDs are read
with their history, so two in one interval are two events. It does not know processes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from types import SimpleNamespace

from msgspec.structs import replace

from goodput_exporters.collector import CollectorError, NoData
from goodput_exporters.gpu.dcgm.connection import (
    Device,
    Link,
    connect,
    find_bindings,
    load_bindings,
    said,
    text_of,
)
from goodput_exporters.gpu.drivers import Options
from goodput_exporters.gpu.nvidia import dcgm_fields as fields
from goodput_exporters.gpu.nvidia.xid import lookup
from goodput_exporters.gpu.sample import EVENTS_MAX, PROBLEMS_MAX, Event, Gpu, Sample

_AGE_NS_MAX = 3_600_000_000_000


class Dcgm:
    name = "dcgm"

    def __init__(
        self,
        options: Options,
        environ: Mapping[str, str] | None = None,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        unix_ns: Callable[[], int] = time.time_ns,
    ):
        self._environ = os.environ if environ is None else environ
        self._interval_seconds = options.interval_seconds
        self._monotonic_ns, self._unix_ns = monotonic_ns, unix_ns
        self._modules: SimpleNamespace | None = None
        self._link: Link | None = None
        self._cycles = fields.SmCycles()
        self._opened_us = 0
        self._xid_seen_us: dict[str, int] = {}

    @staticmethod
    def absence(options: Options) -> str:
        try:
            find_bindings(os.environ)
        except NoData as reason:
            return str(reason)
        return ""

    def open(self) -> None:
        self._modules = load_bindings(self._environ)
        self._opened_us = self._unix_ns() // 1000
        self._connect()

    def close(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def sample(self, full: bool) -> Sample:
        if self._modules is None:
            raise CollectorError("dcgm: a sample is asked for before it is open")
        if self._link is None:
            self._connect()
        try:
            if full and self._link.has_changed():
                self.close()
                self._connect()
            return self._read(self._link, full)
        except self._modules.dcgm_structs.DCGMError as error:
            self.close()
            raise CollectorError(f"DCGM: {said(error)}") from None

    def _connect(self) -> None:
        self._link = connect(self._modules, self._environ, self._interval_seconds, self._monotonic_ns)

    def _read(self, link: Link, full: bool) -> Sample:
        link.retry_profiling()
        problems, link.problems = link.problems, []
        for device in link.devices.values():
            device.values = {}
        fast_us = link.latest("fast", problems)
        measured_us = max(link.latest("profiling", problems), link.latest("totals", problems))
        if full:
            link.latest("slow", problems)
            link.find_lost(problems)
        events = self._events(link, problems)
        gpus = [self._gpu(link, device, full) for device in link.devices.values()]
        self._cycles.keep(set(link.devices))
        return Sample(
            driver=self.name,
            monotonic_ns=self._moment(measured_us or fast_us),
            gpus=gpus,
            full=full,
            window_ns=int(self._interval_seconds * 1e9) if measured_us else 0,
            events=events[:EVENTS_MAX],
            problems=problems[:PROBLEMS_MAX],
        )

    def _moment(self, newest_us: int) -> int:
        """The monotonic time of a value that DCGM took at a Unix time of this host."""
        age_ns = self._unix_ns() - newest_us * 1000
        return self._monotonic_ns() - (age_ns if newest_us and 0 <= age_ns <= _AGE_NS_MAX else 0)

    def _events(self, link: Link, problems: list[str]) -> list[Event]:
        """XIDs that are younger than what was seen, and than this driver: older ones are nobody's news."""
        events, newest_us = [], {}
        for device, time_us, value in link.xids(problems):
            uuid = device.gpu.uuid
            number = fields.number_of(fields.FIELDS[fields.XID], value)
            if number and time_us > self._xid_seen_us.get(uuid, self._opened_us):
                what = lookup(int(number))
                events.append(Event("xid", uuid, time_us * 1000, int(number), what.name, what.severity))
                newest_us[uuid] = max(time_us, newest_us.get(uuid, 0))
        self._xid_seen_us.update(newest_us)
        return events

    def _gpu(self, link: Link, device: Device, full: bool) -> Gpu:
        instance = link.is_instance(device)
        readings = fields.readings_of(device.values, instance)
        share = self._cycles.ratio(device.entity, device.values)
        if share is not None:
            readings.setdefault("activity/sm", share)
        if full:
            if instance:
                device.profile = text_of(device.values.get(fields.NAME)) or device.profile
            index = device.values.get(fields.NVML_INDEX)
            if isinstance(index, int) and index >= 0 and not fields.is_blank(index, False):
                device.index = index
        return replace(
            device.gpu,
            index=device.gpu.index if device.index is None else device.index,
            profile=device.profile,
            readings=readings,
            lost=device.lost,
        )
