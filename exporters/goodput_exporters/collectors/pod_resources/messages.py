"""Reads the kubelet's ListPodResourcesResponse from its protobuf encoding; unknown fields are skipped.

    ListPodResourcesResponse: 1 pod_resources*
    PodResources: 1 name, 2 namespace, 3 containers*
    ContainerResources: 1 name, 2 devices*, 5 dynamic_resources*
    ContainerDevices: 1 resource_name, 2 device_ids*
    DynamicResource: 4 claim_resources*
    ClaimResource: 2 driver_name, 4 device_name

https://github.com/kubernetes/kubelet/blob/master/pkg/apis/podresources/v1/api.proto
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeVar

from goodput_exporters.collector import ParseError

T = TypeVar("T")
# Pods, containers and devices together. A node has some hundred.
ENTRIES_MAX = 65_536
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class Allocation(NamedTuple):
    """A device that a container has; `device` as the resource's plugin names it.

    Of a claim (DRA) `resource` is the driver, and `device` has it too: gpu.nvidia.com/gpu-0.
    """

    pod: str
    namespace: str
    container: str
    resource: str
    device: str


def parse_allocations(message: bytes) -> Iterator[Allocation]:
    """The devices of all containers. Raises ParseError, of more than ENTRIES_MAX entries too."""
    entries = 0

    def counted(found: Iterable[T]) -> Iterator[T]:
        nonlocal entries
        for one in found:
            entries += 1
            if entries > ENTRIES_MAX:
                raise ParseError(
                    f"the kubelet's answer has more than {ENTRIES_MAX} pods, containers and devices"
                )
            yield one

    for pod in counted(_all(memoryview(message), 1)):
        name, namespace = _text(pod, 1), _text(pod, 2)
        for container in counted(_all(pod, 3)):
            container_name = _text(container, 1)
            for resource, device in counted(_devices(container)):
                yield Allocation(name, namespace, container_name, resource, device)


def _devices(container: memoryview) -> Iterator[tuple[str, str]]:
    """(resource, device)."""
    for devices in _all(container, 2):
        resource = _text(devices, 1)
        for device in _all(devices, 2):
            yield resource, _decoded(device)
    for claim in _all(container, 5):
        for device in _all(claim, 4):
            driver = _text(device, 2)
            yield driver, f"{driver}/{_text(device, 4)}"


def _all(message: memoryview, number: int) -> Iterator[memoryview]:
    return (value for field, value in _fields(message) if field == number)


def _text(message: memoryview, number: int) -> str:
    """The last counts, and "" without any."""
    found = deque(_all(message, number), maxlen=1)
    return _decoded(found[0]) if found else ""


def _decoded(value: memoryview) -> str:
    return str(value, "utf-8", "replace")


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """(number, value) of the fields with a length."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == _VARINT:
            _, at = _varint(message, at)
            continue
        if kind not in (_FIXED64, _BYTES, _FIXED32):
            raise ParseError(f"wire type {kind} in the kubelet's answer")
        size = {_FIXED64: 8, _FIXED32: 4}.get(kind, 0)
        if kind == _BYTES:
            size, at = _varint(message, at)
        if size > len(message) - at:
            raise ParseError("the kubelet's answer ends within a field")
        if kind == _BYTES:
            yield key >> 3, message[at : at + size]
        at += size


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            break
        value |= (message[at] & 0x7F) << shift
        at += 1
        if message[at - 1] < 0x80:
            return value, at
    raise ParseError("the kubelet's answer ends within a number")
