"""Which GPUs and MIG instances there are, asked of NVML: a `Device` for each, with what does not change about it.

In: the binding. Out: `Census` (devices, and what could not be reached), and a GPU's MIG instances as they are now.
A handle that cannot be had costs that GPU alone; what it is called is then not known, so it is a text, not a Gpu.
It knows nothing of readings.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from goodput_exporters.gpu.nvml.device import NO_PERMISSION, Device
from goodput_exporters.gpu.nvml.queries import call
from goodput_exporters.gpu.sample import GPUS_MAX, Gpu

# NVML has at most 7 instances per GPU today; the library is believed up to here.
INSTANCES_MAX = 16


@dataclass
class Census:
    """`count` is what NVML says there are, whether or not each could be reached, or may be asked."""

    count: int = 0
    devices: list[Device] = field(default_factory=list)
    unreachable: list[str] = field(default_factory=list)
    forbidden: list[str] = field(default_factory=list)


def take_census(nvml, driver_version: str) -> Census:
    """All GPUs. Raises the binding's NVMLError where they cannot even be counted."""
    census = Census(count=nvml.nvmlDeviceGetCount())
    for index in range(min(census.count, GPUS_MAX)):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = nvml.nvmlDeviceGetUUID(handle)
        except (nvml.NVMLError, ValueError) as error:
            # In a container, another container's GPUs are counted and may not be asked.
            is_forbidden = getattr(error, "value", None) == NO_PERMISSION
            (census.forbidden if is_forbidden else census.unreachable).append(f"GPU {index}: {error}")
            continue
        identity = Gpu(
            uuid=uuid,
            index=index,
            model=_text(nvml, "nvmlDeviceGetName", handle),
            pci=_pci(nvml, handle),
            driver_version=driver_version,
        )
        census.devices.append(Device(nvml, handle, identity))
    return census


def find_instances(device: Device) -> None:
    """Bring `device.instances` up to date. Raises NVMLError where the GPU itself cannot be asked."""
    nvml = device.nvml
    is_mig = call(nvml, "nvmlDeviceGetMigMode", device.handle)[0] == 1
    if is_mig != device.is_mig:
        device.is_mig = is_mig
        # Which calls a GPU answers depends on the mode.
        device.forget_unsupported()
        device.close_gpm()
    found: dict[str, Device] = {}
    places = nvml.nvmlDeviceGetMaxMigDeviceCount(device.handle) if is_mig else 0
    for index in range(min(places, INSTANCES_MAX)):
        try:
            handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(device.handle, index)
            uuid = nvml.nvmlDeviceGetUUID(handle)
            known = device.instances.get(uuid)
            found[uuid] = known or _instance(device, handle, uuid, index)
            # The same instance may have got another handle.
            found[uuid].handle = handle
        except (nvml.NVMLError, ValueError):
            # No instance at this place, the usual answer.
            continue
    for uuid, instance in device.instances.items():
        if uuid not in found:
            instance.close()
    device.instances = found


def _instance(device: Device, handle, uuid: str, index: int) -> Device:
    nvml, gpu = device.nvml, device.identity
    identity = Gpu(
        uuid=uuid,
        index=index,
        model=gpu.model,
        pci=gpu.pci,
        driver_version=gpu.driver_version,
        parent=gpu.uuid,
        profile=profile_of(_text(nvml, "nvmlDeviceGetName", handle), _attributes(nvml, handle)),
    )
    return Device(nvml, handle, identity, nvml.nvmlDeviceGetGpuInstanceId(handle), device.handle)


def profile_of(name: str, attributes) -> str:
    """A MIG instance's profile: from its name, as "NVIDIA A100-SXM4-40GB MIG 1g.5gb", else made of its slices and memory.

    NVIDIA writes 3g.20gb for three slices and 20 GB, 1c.3g.20gb where the compute instance has fewer slices.
    """
    if " MIG " in name:
        return name.rpartition(" MIG ")[2].strip()
    if attributes is None:
        return ""
    compute, slices = attributes.computeInstanceSliceCount, attributes.gpuInstanceSliceCount
    gigabytes = -(-attributes.memorySizeMB // 1024)
    return ("" if compute == slices else f"{compute}c.") + f"{slices}g.{gigabytes}gb"


def _attributes(nvml, handle):
    try:
        return call(nvml, "nvmlDeviceGetAttributes_v2", handle)
    except nvml.NVMLError:
        return None


def _text(nvml, function: str, handle) -> str:
    try:
        return call(nvml, function, handle)
    except (nvml.NVMLError, ValueError):
        return ""


def _pci(nvml, handle) -> str:
    try:
        info = nvml.nvmlDeviceGetPciInfo_v3(handle)
    except nvml.NVMLError:
        return ""
    # A GPU's graphics function is 0; its sound device, where there is one, is 1.
    return f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.0"
