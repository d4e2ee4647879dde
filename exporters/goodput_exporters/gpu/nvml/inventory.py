"""Lists GPUs and MIG instances through NVML. A handle that cannot be obtained costs only that GPU."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from goodput_exporters.gpu.nvml.device import LOST, Device, LostError
from goodput_exporters.gpu.nvml.queries import NO_PERMISSION, call
from goodput_exporters.gpu.sample import GPUS_MAX, Gpu

# NVML has at most 7 instances per GPU today.
INSTANCES_MAX = 16


class Inventory(Struct):
    """`count` is NVML's number of GPUs, including those that cannot be reached or may not be queried."""

    count: int = 0
    devices: list[Device] = []
    unreachable: list[str] = []
    forbidden: list[str] = []


def list_devices(nvml, driver_version: str) -> Inventory:
    """All GPUs. Raises the binding's NVMLError where they cannot be counted."""
    inventory = Inventory(count=nvml.nvmlDeviceGetCount())
    for index in range(min(inventory.count, GPUS_MAX)):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = nvml.nvmlDeviceGetUUID(handle)
        except (nvml.NVMLError, ValueError) as error:
            # In a container, other containers' GPUs are counted but may not be queried.
            is_forbidden = getattr(error, "value", None) == NO_PERMISSION
            (inventory.forbidden if is_forbidden else inventory.unreachable).append(f"GPU {index}: {error}")
            continue
        identity = Gpu(
            uuid=uuid,
            index=index,
            model=_text(nvml, "nvmlDeviceGetName", handle),
            pci=_pci(nvml, handle),
            driver_version=driver_version,
        )
        inventory.devices.append(Device(nvml, handle, identity))
    return inventory


def update_instances(device: Device) -> None:
    """Update `device.instances`; leave them where the GPU cannot be queried. Raises LostError."""
    nvml = device.nvml
    try:
        is_mig = call(nvml, "nvmlDeviceGetMigMode", device.handle)[0] == 1
        slots = nvml.nvmlDeviceGetMaxMigDeviceCount(device.handle) if is_mig else 0
    except nvml.NVMLError as error:
        if error.value in LOST:
            raise LostError(f"nvmlDeviceGetMigMode: {error}") from None
        return
    if is_mig != device.is_mig:
        device.is_mig = is_mig
        # Which calls a GPU supports depends on the mode.
        device.forget_unsupported()
        device.close_gpm()
    found: dict[str, Device] = {}
    for index in range(min(slots, INSTANCES_MAX)):
        try:
            handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(device.handle, index)
            uuid = nvml.nvmlDeviceGetUUID(handle)
            known = device.instances.get(uuid)
            found[uuid] = known or _instance(device, handle, uuid, index)
            # The same instance may have a new handle.
            found[uuid].handle = handle
        except (nvml.NVMLError, ValueError):
            continue  # usually: no instance in this slot
    for uuid, instance in device.instances.items():
        if uuid not in found:
            instance.close()
    device.instances = found


def _instance(device: Device, handle, uuid: str, index: int) -> Device:
    nvml = device.nvml
    try:
        attributes = call(nvml, "nvmlDeviceGetAttributes_v2", handle)
    except nvml.NVMLError:
        attributes = None
    profile = profile_of(_text(nvml, "nvmlDeviceGetName", handle), attributes)
    number = nvml.nvmlDeviceGetGpuInstanceId(handle)
    identity = replace(
        device.identity, uuid=uuid, index=index, parent=device.uuid, profile=profile, instance=str(number)
    )
    return Device(nvml, handle, identity, number, device.handle)


def profile_of(name: str, attributes) -> str:
    """A MIG instance's profile: from its name, such as "NVIDIA A100-SXM4-40GB MIG 1g.5gb", else from its attributes.

    NVIDIA writes 3g.20gb for three slices and 20 GB, 1c.3g.20gb where the compute instance has fewer slices.
    """
    if " MIG " in name:
        return name.rpartition(" MIG ")[2].strip()
    if attributes is None:
        return ""
    compute, slices = attributes.computeInstanceSliceCount, attributes.gpuInstanceSliceCount
    gigabytes = -(-attributes.memorySizeMB // 1024)
    return ("" if compute == slices else f"{compute}c.") + f"{slices}g.{gigabytes}gb"


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
    # The graphics function of a GPU is 0; its sound device, if any, is 1.
    return f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.0"
