"""NVIDIA GPUs through DCGM: activity of SMs, tensor cores and memory on every data-centre GPU, MIG included.

Needs a running nv-hostengine and its Python bindings. A host engine inside this process is started only with
GOODPUT_DCGM_EMBEDDED=1: it would hold the profiling counters against an engine, a dcgm-exporter or a profiler that
comes later, while a running engine already has them and shares them. Without one there is the nvml driver.

Profiling fields may be refused (another profiler holds the counters, or the GPU has none): the rest goes on, the
refusal is reported, and they are tried again every minute. When the host engine goes away, `sample` raises
CollectorError and the next call reconnects; after a few of those the process ends, and another is started when the engine
listens again. Activities are means over the watch interval up to `monotonic_ns`; two
samples with the same `monotonic_ns` are one measurement. Pids are not read.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from goodput_exporters.collector import CollectorError, NoData
from goodput_exporters.gpu.dcgm import connection as dcgm
from goodput_exporters.gpu.dcgm.connection import Connection, Device
from goodput_exporters.gpu.drivers import Options
from goodput_exporters.gpu.nvidia import dcgm_field_table as table
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
        self._interval_seconds, self._further = options.interval_seconds, options.dcgm_fields
        self._monotonic_ns, self._unix_ns = monotonic_ns, unix_ns
        self._modules: Any = None
        self._connection: Connection | None = None
        self._cycles = fields.SmCycles()
        self._opened_us = 0
        self._xid_seen_us: dict[str, int] = {}

    @staticmethod
    def absence(options: Options) -> str:
        try:
            dcgm.find_bindings(os.environ)
        except NoData as reason:
            return str(reason)
        return ""

    @staticmethod
    def is_reachable(options: Options) -> bool:
        return dcgm.is_listening(os.environ)

    def open(self) -> None:
        self._modules = dcgm.load_bindings(self._environ)
        self._opened_us = self._unix_ns() // 1000
        self._connect()

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def sample(self, full: bool) -> Sample:
        if self._modules is None:
            raise CollectorError("dcgm: sample() called before open()")
        connection = self._connection or self._connect()
        try:
            if full and connection.has_changed():
                self.close()
                connection = self._connect()
            return self._read(connection, full)
        except self._modules.dcgm_structs.DCGMError as error:
            self.close()
            raise CollectorError(f"DCGM: {dcgm.error_text(error)}") from None

    def _connect(self) -> Connection:
        self._connection = dcgm.connect(
            self._modules, self._environ, self._interval_seconds, self._monotonic_ns, self._further
        )
        return self._connection

    def _read(self, connection: Connection, full: bool) -> Sample:
        connection.retry_profiling()
        problems, connection.problems = connection.problems, []
        for device in connection.devices.values():
            device.values = {}
        fast_us = connection.latest("fast", problems)
        measured_us = max(connection.latest(what, problems) for what in ("profiling", "totals", "pipes"))
        if full:
            for what in ("rare", *dcgm.FURTHER, "slow"):
                connection.latest(what, problems)
            connection.find_lost(problems)
        components = connection.components(problems) if full else []
        events = self._events(connection, problems)
        gpus = [self._gpu(connection, device, full) for device in connection.devices.values()]
        self._cycles.keep(set(connection.devices))
        return Sample(
            driver=self.name,
            monotonic_ns=self._monotonic_of(measured_us or fast_us),
            gpus=gpus,
            full=full,
            events=events[:EVENTS_MAX],
            problems=problems[:PROBLEMS_MAX],
            components=components,
        )

    def _monotonic_of(self, newest_us: int) -> int:
        """The monotonic time of a value that DCGM measured at a Unix time of this host."""
        age_ns = self._unix_ns() - newest_us * 1000
        return self._monotonic_ns() - (age_ns if newest_us and 0 <= age_ns <= _AGE_NS_MAX else 0)

    def _events(self, connection: Connection, problems: list[str]) -> list[Event]:
        """XIDs newer than the last one seen, and than this driver. DCGM keeps their history, so none is missed."""
        events, newest_us = [], {}
        for device, time_us, value in connection.xids(problems):
            uuid = device.gpu.uuid
            number = fields.number_of(fields.FIELDS[table.XID], value)
            if number and time_us > self._xid_seen_us.get(uuid, self._opened_us):
                xid = lookup(int(number))
                events.append(Event("xid", uuid, time_us * 1000, int(number), xid.name, xid.severity))
                newest_us[uuid] = max(time_us, newest_us.get(uuid, 0))
        self._xid_seen_us.update(newest_us)
        return events

    def _gpu(self, connection: Connection, device: Device, full: bool) -> Gpu:
        instance = connection.is_instance(device)
        readings = fields.readings_of(device.values, instance)
        self._cycles.add_activity(device.entity, device.values, readings)
        for number, name in connection.further.items():
            value = device.values.get(number) if number not in fields.FIELDS else None
            if isinstance(value, int | float) and not fields.is_blank(value, isinstance(value, float)):
                readings[f"dcgm_field/{name}"] = value
        if full:
            if instance:
                device.profile = dcgm.text_of(device.values.get(table.NAME)) or device.profile
            index = device.values.get(table.NVML_INDEX)
            if isinstance(index, int) and index >= 0 and not fields.is_blank(index, False):
                device.index = index
        return replace(
            device.gpu,
            index=device.gpu.index if device.index is None else device.index,
            profile=device.profile,
            readings=readings,
            lost=device.lost,
            why="DCGM cannot reach it" if device.lost else "",
        )
