"""A stand-in for NVIDIA's DCGM bindings: the same modules, classes and methods over a host engine made of dictionaries.

Names, arguments and shapes are those of testing/python3 in NVIDIA/DCGM (DcgmHandle, DcgmSystem, DcgmGroup,
DcgmFieldGroup, dcgm_field_helpers, dcgm_structs). `write_bindings` puts them where a DCGM installation would.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType, SimpleNamespace

GPU, SWITCH, GPU_INSTANCE, COMPUTE_INSTANCE, CPU = 1, 3, 4, 5, 7
MODULES = ("dcgm_structs", "dcgm_fields", "dcgm_agent", "pydcgm")
OK, BAD_PARAMETER, NOT_CONFIGURED, UNKNOWN_FIELD = 0, -1, -5, -13
CONNECTION_NOT_VALID, LIBRARY_NOT_FOUND, DUPLICATE_KEY, PROFILING_NOT_SUPPORTED = -21, -25, -26, -36


class DCGMError(Exception):
    def __init__(self, value):
        super().__init__(f"DCGM error {value}")
        self.value = value


class Value:
    """dcgm_field_helpers.DcgmFieldValue."""

    def __init__(self, value, ts_us, status=OK):
        self.value, self.ts, self.isBlank = value, ts_us, status != OK
        if isinstance(value, float):
            self.isBlank |= value >= 140737488355328.0
        elif isinstance(value, int):
            self.isBlank |= value >= 0x7FFFFFFFFFFFFFF0
        elif isinstance(value, str):
            self.isBlank |= value.startswith("<<<") and ">>>" in value


class Engine:
    """What a host engine knows. `set` notes a value at a time; values are kept, as DCGM's cache keeps them."""

    def __init__(self):
        self.gpus: dict[int, SimpleNamespace] = {}
        self.instances: dict[int, tuple[int, int]] = {}  # entity: (GPU, instance number)
        self.others: dict[int, list[int]] = {}  # entities of other groups
        self.cache: dict[tuple[int, int, int], list[Value]] = {}
        self.status: dict[int, int] = {}
        self.up, self.library = True, True
        self.refused: set[int] = set()
        self.unknown: set[int] = set()
        self.connections: list[dict] = []
        self.watched: dict[int, float] = {}
        self.groups: set[str] = set()
        self.handles = 0

    def add_gpu(self, number, uuid, name="NVIDIA H100 80GB HBM3", pci="00000000:1B:00.0", driver="550.54.15"):
        identifiers = SimpleNamespace(uuid=uuid, deviceName=name, pciBusId=pci, driverVersion=driver)
        self.gpus[number] = SimpleNamespace(identifiers=identifiers)

    def set(self, entity_group, entity, ts_us, values):
        for number, value in values.items():
            self.cache.setdefault((entity_group, entity, number), []).append(Value(value, ts_us))

    def check(self):
        if not self.up:
            raise DCGMError(CONNECTION_NOT_VALID)


ENGINE: Engine | None = None


class DcgmHandle:
    def __init__(
        self,
        handle=None,
        ipAddress=None,
        opMode=1,
        persistAfterDisconnect=False,
        unixSocketPath=None,
        timeoutMs=0,
    ):
        if ipAddress is not None and unixSocketPath is not None:
            raise DCGMError(BAD_PARAMETER)
        if not ENGINE.library:
            raise DCGMError(LIBRARY_NOT_FOUND)
        ENGINE.check()
        self.handle = object()
        ENGINE.handles += 1
        ENGINE.connections.append({"ip": ipAddress, "unix": unixSocketPath, "timeout": timeoutMs})

    def GetSystem(self):
        return _System()

    def Shutdown(self):
        if self.handle is None:
            return
        self.handle = None
        ENGINE.handles -= 1
        ENGINE.groups.clear()
        ENGINE.watched.clear()
        ENGINE.check()


class _System:
    def __init__(self):
        self.discovery = _Discovery()
        self.fields = SimpleNamespace(
            GetFieldById=lambda number: None if number in ENGINE.unknown else object()
        )

    def UpdateAllFields(self, waitForUpdate):
        ENGINE.check()


class _Discovery:
    def GetEntityGroupEntities(self, entityGroupId, onlySupported):
        ENGINE.check()
        known = {GPU: ENGINE.gpus, GPU_INSTANCE: ENGINE.instances}
        return list(known.get(entityGroupId) or ENGINE.others.get(entityGroupId, ()))

    def GetGpuAttributes(self, gpuId):
        ENGINE.check()
        return ENGINE.gpus[gpuId]

    def GetGpuStatus(self, gpuId):
        ENGINE.check()
        return SimpleNamespace(value=ENGINE.status.get(gpuId, 1))


class DcgmFieldGroup:
    def __init__(self, dcgmHandle, name="", fieldIds=None, fieldGroupId=None):
        ENGINE.check()
        if name in ENGINE.groups:
            raise DCGMError(DUPLICATE_KEY)
        if set(fieldIds) & ENGINE.unknown:
            raise DCGMError(UNKNOWN_FIELD)
        ENGINE.groups.add(name)
        self.fieldIds = list(fieldIds)


class DcgmGroup:
    def __init__(self, dcgmHandle, groupId=None, groupName=None, groupType=1):
        ENGINE.check()
        if groupName in ENGINE.groups:
            raise DCGMError(DUPLICATE_KEY)
        ENGINE.groups.add(groupName)
        self.entities: list[tuple[int, int]] = []
        self.samples = _Samples(self)

    def AddEntity(self, entityGroupId, entityId):
        ENGINE.check()
        self.entities.append((entityGroupId, entityId))


class _Samples:
    def __init__(self, group):
        self._group = group

    def WatchFields(self, fieldGroup, updateFreq, maxKeepAge, maxKeepSamples):
        ENGINE.check()
        if set(fieldGroup.fieldIds) & ENGINE.refused:
            raise DCGMError(PROFILING_NOT_SUPPORTED)
        ENGINE.watched.update(dict.fromkeys(fieldGroup.fieldIds, updateFreq))

    def GetLatest_v2(self, fieldGroup):
        ENGINE.check()
        return _Collection(self._group, fieldGroup, None)

    def GetAllSinceLastCall_v2(self, dfvec, fieldGroup):
        ENGINE.check()
        if dfvec is None:
            return _Collection(self._group, fieldGroup, None)
        # As the real one: what is new is added to what the caller left in it.
        dfvec.add(self._group, fieldGroup, dfvec.until_us)
        if not dfvec.values:
            dfvec.add(self._group, fieldGroup, None)
        return dfvec


class _Collection:
    """DcgmFieldValueEntityCollection: values[entity group][entity][field], oldest first."""

    def __init__(self, group, field_group, since_us):
        self.values: dict = {}
        self.until_us = 0
        self.add(group, field_group, since_us)

    def add(self, group, field_group, since_us):
        for entity_group, entity in group.entities:
            for number in field_group.fieldIds:
                known = (
                    ENGINE.cache.get((entity_group, entity, number), []) if number in ENGINE.watched else []
                )
                reported = (
                    known[-1:] if since_us is None else [value for value in known if value.ts > since_us]
                )
                if reported:
                    entities = self.values.setdefault(entity_group, {})
                    entities.setdefault(entity, {}).setdefault(number, []).extend(reported)
                    self.until_us = max(self.until_us, reported[-1].ts)

    def EmptyValues(self):
        self.values = {}


def dcgmGetGpuInstanceHierarchy(dcgm_handle):
    """Each GPU instance, and one compute instance in it, as c_dcgmMigHierarchy_v2 has them."""
    ENGINE.check()
    entities = []
    for entity, (gpu, number) in ENGINE.instances.items():
        info = SimpleNamespace(nvmlInstanceId=number, nvmlComputeInstanceId=0)
        own, parent = SimpleNamespace(entityGroupId=GPU_INSTANCE, entityId=entity), _pair(GPU, gpu)
        entities.append(SimpleNamespace(entity=own, parent=parent, info=info))
        entities.append(SimpleNamespace(entity=_pair(COMPUTE_INSTANCE, entity), parent=own, info=info))
    if not entities and ENGINE.status.get("no_mig"):
        raise DCGMError(NOT_CONFIGURED)
    return SimpleNamespace(count=len(entities), entityList=entities)


def _pair(group, entity):
    return SimpleNamespace(entityGroupId=group, entityId=entity)


CONTENTS = {
    "dcgm_structs": {
        "DCGMError": DCGMError,
        "DCGM_ST_CONNECTION_NOT_VALID": CONNECTION_NOT_VALID,
        "DCGM_ST_LIBRARY_NOT_FOUND": LIBRARY_NOT_FOUND,
        "DCGM_OPERATION_MODE_AUTO": 1,
        "DCGM_GROUP_EMPTY": 1,
    },
    "dcgm_fields": {
        "DCGM_FE_GPU": GPU,
        "DCGM_FE_GPU_I": GPU_INSTANCE,
        "DCGM_FE_SWITCH": SWITCH,
        "DCGM_FE_CPU": CPU,
    },
    "dcgm_agent": {"dcgmGetGpuInstanceHierarchy": dcgmGetGpuInstanceHierarchy},
    "pydcgm": {"DcgmHandle": DcgmHandle, "DcgmGroup": DcgmGroup, "DcgmFieldGroup": DcgmFieldGroup},
}


def write_bindings(folder, engine: str = "") -> None:
    """`engine`, MODULE:FUNCTION, makes the engine of a process that has started none."""
    folder.mkdir(parents=True)
    for name in MODULES:
        (folder / f"{name}.py").write_text(
            f"from support.node.dcgm import standin\nstandin.make({engine!r})\n"
            f"globals().update(standin.CONTENTS[{name!r}])\n"
        )


def make(engine: str) -> None:
    global ENGINE
    if engine and ENGINE is None:
        module, _, function = engine.partition(":")
        ENGINE = getattr(importlib.import_module(module), function)()


def start(engine: Engine) -> None:
    """Make this the engine that all bindings talk to, and forget bindings imported before."""
    global ENGINE
    ENGINE = engine
    for name in MODULES:
        module = sys.modules.get(name)
        if isinstance(module, ModuleType):
            del sys.modules[name]
