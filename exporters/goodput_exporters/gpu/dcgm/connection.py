"""A connection to a DCGM host engine: its devices, the watched fields, and their latest raw values.

The bindings (pydcgm) are found where DCGM 3 and 4 install them, since no package index has them, or in
GOODPUT_DCGM_BINDINGS. The host engine is at 127.0.0.1:5555, or at GOODPUT_DCGM_HOSTENGINE (host:port or the path of a
socket), or inside this process with GOODPUT_DCGM_EMBEDDED=1.

This uses the objects that DcgmReader consists of rather than DcgmReader, which returns values without timestamps,
does not support Unix sockets, and drops all fields if one is refused. Any call may raise the bindings' DCGMError when
the host engine is gone; other refusals are problems.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

from msgspec.structs import replace

from goodput_exporters.collector import CollectorError, NoData
from goodput_exporters.gpu.nvidia import dcgm_components
from goodput_exporters.gpu.nvidia import dcgm_field_table as table
from goodput_exporters.gpu.nvidia import dcgm_fields as fields
from goodput_exporters.gpu.pci import normalize
from goodput_exporters.gpu.sample import COMPONENTS_MAX, GPUS_MAX, TEXT_MAX, Component, Gpu

BINDINGS = (
    "/usr/share/datacenter-gpu-manager-4/bindings/python3",
    "/usr/local/dcgm/bindings/python3",
    "/usr/local/dcgm/bindings",
)
HOSTENGINE = "127.0.0.1:5555"
_MODULES = ("dcgm_structs", "dcgm_fields", "dcgm_agent", "pydcgm")
_CONNECT_MILLISECONDS_MAX = 2000
_LISTENING_SECONDS_MAX = 0.5
_SLOW_SECONDS = 5.0
_RARE_SECONDS = 60.0
_KEEP_SECONDS = 300.0
_RETRY_SECONDS = 60.0
# Longer than any device name, and short enough that two fit into a text.
_NAME_MAX = 100
# What is beside the GPUs, by the bindings' name of its group of entities, and how dcgm-exporter names one.
_COMPONENTS = {"nvswitch": ("DCGM_FE_SWITCH", "nvswitch{}"), "cpu": ("DCGM_FE_CPU", "{}")}
# DcgmEntityStatusInaccessible and DcgmEntityStatusLost of dcgm_structs.h.
_STATUS_LOST = (3, 4)


@dataclass
class Device:
    """A GPU or a GPU instance: its identity when we connected, and its values by field ID."""

    entity: tuple[int, int]
    gpu: Gpu
    lost: bool = False
    profile: str = ""
    index: int | None = None
    values: dict[int, object] = field(default_factory=dict)


FURTHER = ("further", "further profiling")


class Connection:
    """A connection and its watches, made by `connect`. `devices` is keyed by (entity group, entity)."""

    _group_count = 0

    def __init__(
        self,
        modules: SimpleNamespace,
        handle,
        interval_seconds: float,
        monotonic_ns: Callable[[], int],
        further: tuple[str, ...] = (),
    ):
        # Names of the fields that only a list of counters has watched, by their number in this DCGM.
        self.further = {
            number: name for name in further if (number := _number_of(modules.dcgm_fields, name)) is not None
        }
        self.devices: dict[tuple[int, int], Device] = {}
        unknown = sorted(set(further) - set(self.further.values()))
        self.problems: list[str] = [f"DCGM has no field {name}"[:TEXT_MAX] for name in unknown]
        self._modules, self._handle, self._interval_seconds = modules, handle, interval_seconds
        self._structs, self._monotonic_ns = modules.dcgm_structs, monotonic_ns
        self._gpu_group = modules.dcgm_fields.DCGM_FE_GPU
        self._instance_group = modules.dcgm_fields.DCGM_FE_GPU_I
        self._system = handle.GetSystem()
        self._group: Any = None
        self._watches: dict[str, object] = {}
        self._component_watches: list[
            tuple[str, Any, object]
        ] = []  # kind, group of entities, group of fields
        self._history: Any = None
        self._refused_ns: int | None = None

    def watch(self) -> None:
        """Watch all fields on all devices. Raises NoData where there are none, and DCGMError."""
        self._group = self._modules.pydcgm.DcgmGroup(
            self._handle, groupName=self._unique_name(), groupType=self._structs.DCGM_GROUP_EMPTY
        )
        for entity, device in self._find_devices().items():
            self._group.AddEntity(*entity)
            self.devices[entity] = device
        if not self.devices:
            raise NoData("DCGM reports no GPU")
        self._start("fast", table.FAST, self._interval_seconds)
        self._start("slow", table.SLOW, max(_SLOW_SECONDS, self._interval_seconds))
        self._start("rare", table.RARE, max(_RARE_SECONDS, self._interval_seconds))
        self._start_further()
        self._start("xid", (table.XID,), self._interval_seconds)
        self._start_profiling()
        for kind in _COMPONENTS:
            self._call(partial(self._watch_components, kind), f"{kind} fields refused", self.problems)
        self._system.UpdateAllFields(True)

    def close(self) -> None:
        """Disconnect: DCGM then drops the groups and watches of this connection."""
        with contextlib.suppress(Exception):  # The connection or the host engine may be gone.
            self._handle.Shutdown()

    def is_instance(self, device: Device) -> bool:
        return device.entity[0] == self._instance_group

    def has_changed(self) -> bool:
        """Whether MIG was reconfigured, or a GPU came or went: watched groups cannot be changed."""
        gpus = self._system.discovery.GetEntityGroupEntities(self._gpu_group, True)
        now = {(self._gpu_group, int(number)) for number in gpus}
        return now.union(entity for entity, *_ in self._instances()) != set(self.devices)

    def retry_profiling(self) -> None:
        if self._refused_ns is not None and self._monotonic_ns() - self._refused_ns > _RETRY_SECONDS * 1e9:
            self._start_profiling()

    def latest(self, what: str, problems: list[str]) -> int:
        """Store a watch's latest values in their devices; returns the newest value's time (Unix µs), 0 without one."""
        watch = self._watches.get(what)
        if watch is None:
            return 0
        found = self._call(lambda: self._group.samples.GetLatest_v2(watch).values, what, problems) or {}
        newest_us = 0
        for group, entities in found.items():
            for number, series in entities.items():
                device = self.devices.get((int(group), int(number)))
                if device is None:
                    continue
                for at, values in series.items():
                    last = values[-1]
                    # DCGM keeps old values: a field whose newest value is blank has none now.
                    device.values[int(at)] = last.value
                    known = fields.FIELDS.get(int(at))
                    if known is not None and not fields.is_blank(last.value, known.double):
                        newest_us = max(newest_us, int(last.ts))
        return newest_us

    def components(self, problems: list[str]) -> list[Component]:
        """NVSwitches and CPUs with the latest readings of their own, those of links not included."""
        found = []
        for kind, entities, watch in self._component_watches:
            read = partial(entities.samples.GetLatest_v2, watch)
            values = getattr(self._call(read, kind, problems), "values", {})
            for number, series in (pair for of_group in values.values() for pair in of_group.items()):
                readings: dict[str, float] = {}
                for at, history in series.items():
                    field = dcgm_components.FIELDS.get(int(at))
                    readings |= dcgm_components.reading_of(field, history[-1].value) if field else {}
                found.append(Component(kind, _COMPONENTS[kind][1].format(int(number)), readings))
        return found[:COMPONENTS_MAX]

    def _watch_components(self, kind: str) -> None:
        group = getattr(self._modules.dcgm_fields, _COMPONENTS[kind][0], None)
        numbers = [] if group is None else list(self._system.discovery.GetEntityGroupEntities(group, True))
        if not numbers:
            return
        known = [
            field.number
            for field in dcgm_components.TABLE
            if field.kind == kind
            and "{link}" not in field.key
            and self._system.fields.GetFieldById(field.number)
        ]
        entities = self._modules.pydcgm.DcgmGroup(
            self._handle, groupName=self._unique_name(), groupType=self._structs.DCGM_GROUP_EMPTY
        )
        for number in numbers[:COMPONENTS_MAX]:
            entities.AddEntity(group, int(number))
        watch = self._modules.pydcgm.DcgmFieldGroup(self._handle, self._unique_name(), known)
        entities.samples.WatchFields(
            watch, int(max(_SLOW_SECONDS, self._interval_seconds) * 1e6), _KEEP_SECONDS, 0
        )
        self._component_watches.append((kind, entities, watch))

    def find_lost(self, problems: list[str]) -> None:
        for (group, number), device in self.devices.items():
            if group == self._gpu_group:
                read = partial(self._system.discovery.GetGpuStatus, number)
                status = self._call(read, f"GPU {number}", problems)
                device.lost = getattr(status, "value", status) in _STATUS_LOST

    def xids(self, problems: list[str]) -> list[tuple[Device, int, object]]:
        """(GPU, Unix µs, value) of each XID since the last call, possibly with the last one before it."""
        watch = self._watches.get("xid")
        if watch is None:
            return []
        read = partial(self._group.samples.GetAllSinceLastCall_v2, self._history, watch)
        history = self._call(read, "xid", problems)
        if history is None:
            return []
        self._history = history
        found = []
        for (group, number), device in self.devices.items():
            if group == self._gpu_group:
                values = history.values.get(group, {}).get(number, {}).get(table.XID, ())
                recorded = [values[at] for at in range(len(values))]
                found += [(device, int(value.ts), value.value) for value in recorded if not value.isBlank]
        history.EmptyValues()
        return found

    def _unique_name(self) -> str:
        """A name that is unique in the host engine, even beside an agent that died a moment ago."""
        Connection._group_count += 1
        return f"goodput_{os.getpid()}_{Connection._group_count}"

    def _start_profiling(self) -> None:
        self._refused_ns = None
        for what, numbers in (("profiling", table.PROFILING), ("totals", table.TOTALS)):
            start = partial(self._start, what, numbers, self._interval_seconds)
            if not self._call(start, f"{what} fields refused", self.problems):
                self._refused_ns = self._monotonic_ns()
        # Many GPUs do not count these beside the others, which is no problem.
        self._call(partial(self._start, "pipes", table.PIPES, self._interval_seconds), "", [])

    def _start_further(self) -> None:
        """Profiling fields may be refused, and the others then are watched without them."""
        seconds = max(_SLOW_SECONDS, self._interval_seconds)
        for what in FURTHER:
            is_profiling = what == "further profiling"
            numbers = [
                at for at, name in self.further.items() if name.startswith("DCGM_FI_PROF_") == is_profiling
            ]
            self._call(partial(self._start, what, numbers, seconds), f"{what} fields refused", self.problems)

    def _start(self, what: str, numbers, seconds: float) -> bool:
        """Watch the fields that this DCGM version knows; an unknown field would fail the whole group."""
        known = [number for number in numbers if self._system.fields.GetFieldById(number)]
        if known and what not in self._watches:
            group = self._modules.pydcgm.DcgmFieldGroup(self._handle, self._unique_name(), known)
            self._group.samples.WatchFields(group, int(seconds * 1e6), _KEEP_SECONDS, 0)
            self._watches[what] = group
        return True

    def _call(self, function, what: str, problems: list[str]):
        """The function's result; None, and a problem, where DCGM refuses this call."""
        try:
            return function()
        except self._structs.DCGMError as error:
            if error.value == self._structs.DCGM_ST_CONNECTION_NOT_VALID:
                raise
            problems.append(f"DCGM: {what}: {error_text(error)}"[:TEXT_MAX])
            return None

    def _instances(self) -> list[tuple[tuple[int, int], int, int]]:
        """(entity, its GPU's number, its number in the GPU) of each GPU instance."""
        read = partial(self._modules.dcgm_agent.dcgmGetGpuInstanceHierarchy, self._handle.handle)
        tree = self._call(read, "", [])
        if tree is None:
            return []  # no MIG support
        found = []
        for at in range(min(tree.count, GPUS_MAX)):
            node = tree.entityList[at]
            groups = node.entity.entityGroupId, node.parent.entityGroupId
            if groups == (self._instance_group, self._gpu_group):
                entity = (self._instance_group, int(node.entity.entityId))
                found.append((entity, int(node.parent.entityId), int(node.info.nvmlInstanceId)))
        return found

    def _find_devices(self) -> dict[tuple[int, int], Device]:
        devices: dict[tuple[int, int], Device] = {}
        for number in list(self._system.discovery.GetEntityGroupEntities(self._gpu_group, True))[:GPUS_MAX]:
            found = self._system.discovery.GetGpuAttributes(number).identifiers
            gpu = Gpu(
                uuid=text_of(found.uuid) or f"DCGM-{number}",
                index=int(number),
                model=text_of(found.deviceName),
                pci=normalize(text_of(found.pciBusId)),
                driver_version=text_of(found.driverVersion),
            )
            entity = (self._gpu_group, int(number))
            devices[entity] = Device(entity, gpu)
        for entity, parent, instance in self._instances()[: GPUS_MAX - len(devices)]:
            whole = devices.get((self._gpu_group, parent))
            if whole is not None:
                uuid = fields.instance_uuid(whole.gpu.uuid, instance)
                gpu = replace(whole.gpu, uuid=uuid, parent=whole.gpu.uuid, instance=str(instance))
                devices[entity] = Device(entity, gpu)
        return devices


def _number_of(names: object, name: str) -> int | None:
    """The number of a field, by the table or by the bindings' module of names."""
    known = fields.field_of_name(name)
    return known.number if known is not None else getattr(names, name, None)


def find_bindings(environ: Mapping[str, str]) -> str:
    """The first folder that has the bindings. Raises NoData."""
    configured = environ.get("GOODPUT_DCGM_BINDINGS", "")
    folders = [configured] if configured else list(BINDINGS)
    for folder in folders:
        if os.path.isfile(os.path.join(folder, "pydcgm.py")):
            return folder
    raise NoData(f"no pydcgm.py in {', '.join(folders)}")


def load_bindings(environ: Mapping[str, str]) -> SimpleNamespace:
    """Import the bindings. Raises NoData and CollectorError."""
    folder = find_bindings(environ)
    if folder not in sys.path:
        # Last, since the folder has modules with names such as `logger` and `utils`.
        sys.path.append(folder)
    try:
        return SimpleNamespace(**{name: importlib.import_module(name) for name in _MODULES})
    except (Exception, SystemExit) as error:
        raise CollectorError(f"{folder}: {type(error).__name__}: {error}"[:TEXT_MAX]) from None


def connect(
    modules: SimpleNamespace,
    environ: Mapping[str, str],
    interval_seconds: float,
    monotonic_ns: Callable[[], int],
    further: tuple[str, ...] = (),
) -> Connection:
    """Connect and watch. Raises NoData without the library or a GPU, CollectorError where DCGM does not answer."""
    structs, address = modules.dcgm_structs, address_of(environ)
    try:
        handle = modules.pydcgm.DcgmHandle(
            opMode=structs.DCGM_OPERATION_MODE_AUTO, timeoutMs=_CONNECT_MILLISECONDS_MAX, **address
        )
    except structs.DCGMError as error:
        if error.value == structs.DCGM_ST_LIBRARY_NOT_FOUND:
            raise NoData(f"DCGM: {error_text(error)}") from None
        where = next(iter(address.values()), "embedded host engine")
        advice = "is another host engine already running?"
        if address:
            advice = "start nv-hostengine, or set GOODPUT_DCGM_EMBEDDED=1"
        raise CollectorError(f"DCGM: {where}: {error_text(error)}; {advice}") from None
    connection = Connection(modules, handle, interval_seconds, monotonic_ns, further)
    try:
        connection.watch()
        return connection
    except BaseException as error:
        connection.close()
        if isinstance(error, structs.DCGMError):
            raise CollectorError(f"DCGM: {error_text(error)}") from None
        raise


def address_of(environ: Mapping[str, str]) -> dict[str, str]:
    """The host engine's address as arguments of DcgmHandle; empty for one in this process."""
    if environ.get("GOODPUT_DCGM_EMBEDDED") == "1":
        return {}
    address = (environ.get("GOODPUT_DCGM_HOSTENGINE", "") or HOSTENGINE).removeprefix("unix://")
    return {"unixSocketPath": address} if address.startswith("/") else {"ipAddress": address}


def is_listening(environ: Mapping[str, str]) -> bool:
    """Whether the host engine accepts connections, or would be in this process. Raises nothing."""
    address = address_of(environ)
    host, path = address.get("ipAddress", ""), address.get("unixSocketPath", "")
    try:
        if path:
            with socket.socket(socket.AF_UNIX) as plain:
                plain.settimeout(_LISTENING_SECONDS_MAX)
                plain.connect(path)
        elif host:
            parts = urlsplit(f"//{host}")
            port = parts.port or int(HOSTENGINE.rpartition(":")[2])
            socket.create_connection((parts.hostname or "", port), _LISTENING_SECONDS_MAX).close()
    except (OSError, ValueError, OverflowError):
        return False
    return True


def text_of(value: object) -> str:
    """A string of the bindings, "" where it is blank (<<<NULL>>>, <<<NOT_SUPPORTED>>>)."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if not isinstance(value, str) or (value.startswith("<<<") and ">>>" in value):
        return ""
    return value[:_NAME_MAX]


def error_text(error: BaseException) -> str:
    """An error in one line."""
    return " ".join(str(error).split())[:160] or type(error).__name__
