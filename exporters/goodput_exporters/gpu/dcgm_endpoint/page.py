"""A dcgm-exporter's page as devices: GPUs and MIG instances with their values, NVSwitches and CPUs with their readings.

A line of a link of a GPU, which newer exporters have beside those of the GPU, is not a value of the GPU. A bad line
costs only that line and is a problem. Each distinct label set is parsed once; of a page at most LABEL_SETS_MAX are, in
0.8 s.

    page = parse_page(text); page.devices, page.components, page.problems
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from goodput_exporters.gpu.nvidia import dcgm_components
from goodput_exporters.gpu.nvidia import dcgm_fields as fields
from goodput_exporters.gpu.nvidia.dcgm_field_table import XID, Field
from goodput_exporters.gpu.pci import normalize
from goodput_exporters.gpu.sample import COMPONENTS_MAX, GPUS_MAX, PODS_MAX, PROBLEMS_MAX, TEXT_MAX, Component

LABEL_SETS_MAX = 16_384
_NAME_END = re.compile(r"[{\s]")
_LINE_MAX = 4096
# Longer than any device name, and short enough that two fit into a text.
_LABEL_MAX = 100
# Of what a GPU has in all, what one of its links has.
_OF_A_LINK = {
    "nvlink_errors/": "nvlink_link_errors/{}/",
    "link_bytes/nvlink/": "nvlink_link_bytes/{}/",
    "link_rate/nvlink/": "nvlink_link_rate/{}/",
}


class Source(NamedTuple):
    """The GPU of a line and, with MIG, the instance, from its labels."""

    uuid: str
    index: int
    model: str
    pci: str
    driver_version: str
    instance: str
    profile: str


Pod = tuple[str, str, str]  # its name, its namespace, and the container


class Device(NamedTuple):
    """A GPU or an instance: its identity, values by field ID, the pods of its lines in order, and readings of its links
    and of extra fields."""

    source: Source
    values: dict[int, float]
    pods: dict[Pod, None]
    readings: dict[str, float]


class Line(NamedTuple):
    """What the labels of a line say: of which device it is, of which pod, of which link, of which other component."""

    source: Source
    pod: Pod | None
    link: str
    component: tuple[str, str] | None


Devices = dict[tuple[str, str], Device]  # by UUID and instance


@dataclass
class Page:
    """`components` has readings by kind and name; `label_sets` are the labels of its lines."""

    devices: Devices = field(default_factory=dict)
    components: dict[tuple[str, str], dict[str, float]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    label_sets: set[str] = field(default_factory=set)

    def component_records(self) -> list[Component]:
        return [Component(kind, name, readings) for (kind, name), readings in self.components.items()]


class LineError(ValueError):
    """A line of the page is unusable."""


def parse_page(text: str, extra: frozenset[str] = frozenset()) -> Page:
    """The page's devices; `extra` are names of fields that are in no table, and are read as they are."""
    page = Page()
    for at, line in enumerate(text.split("\n"), 1):
        try:
            _add_line(line.strip(), page, extra)
        except (LineError, ValueError) as error:
            if len(page.problems) < PROBLEMS_MAX:
                page.problems.append(f"line {at}: {error}"[:TEXT_MAX])
    return page


def last_xid(values: Mapping[int, object]) -> int | None:
    number = fields.number_of(fields.FIELDS[XID], values.get(XID))
    return None if number is None else int(number)


def _add_line(text: str, page: Page, extra: frozenset[str]) -> None:
    name = _NAME_END.split(text, 1)[0] if text.startswith("DCGM_FI_") else ""
    of_component = dcgm_components.BY_NAME.get(name)
    if not name or not (of_component or name in extra or fields.field_of_name(name)):
        return  # a comment, a series of the exporter itself, or a field that is not used
    if len(text) > _LINE_MAX:
        raise LineError(f"{len(text)} characters, {_LINE_MAX} at most")
    head, brace, tail = text.rpartition("}")
    labels = head[len(name) :] + brace
    if labels not in page.label_sets and len(page.label_sets) >= LABEL_SETS_MAX:
        raise LineError(f"more than {LABEL_SETS_MAX} sets of labels on the page")
    page.label_sets.add(labels)
    line = labels_of(labels)
    value = value_of(tail)
    known = fields.field_of_name(name, value)
    if of_component is not None:
        _add_component(page, line, of_component, value)
    elif not line.source.uuid:
        raise LineError("no label with the GPU's UUID (UUID, gpu_uuid)")
    elif known is None:
        _add_extra(page, line, name, value)
    elif line.link:
        _add_link(page, line, known, value)
    else:
        _add_value(page, line, name, known, value)


def _add_component(page: Page, line: Line, of: dcgm_components.ComponentField, value: float) -> None:
    if line.component is None or line.component[0] != of.kind:
        return  # such as a core of a CPU
    if line.component not in page.components and len(page.components) >= COMPONENTS_MAX:
        raise LineError(f"more than {COMPONENTS_MAX} NVSwitches and CPUs")
    readings = page.components.setdefault(line.component, {})
    readings.update(dcgm_components.reading_of(of, value, line.link))


def _add_extra(page: Page, line: Line, name: str, value: float) -> None:
    """A field that is in no table; of a GPU or an instance, whichever the line names."""
    device = _device_of(page.devices, line.source)
    if not fields.is_blank(value, isinstance(value, float)):
        device.readings[f"dcgm_field/{name}"] = value


def _add_link(page: Page, line: Line, known: Field, value: float) -> None:
    if not (line.link.isascii() and line.link.isdigit() and len(line.link) < 4):
        raise LineError(f"nvlink is {line.link[:16]!r}")
    number = fields.number_of(known, value)
    whole = line.source._replace(instance="", profile="")
    for prefix, of_link in _OF_A_LINK.items():
        if known.key.startswith(prefix) and number is not None:
            multiply, divide = known.scale
            key = of_link.format(int(line.link)) + known.key.removeprefix(prefix)
            _device_of(page.devices, whole).readings[key] = number * multiply / divide


def _add_value(page: Page, line: Line, name: str, known: Field, value: float) -> None:
    source, pod = line.source, line.pod
    whole = source._replace(instance="", profile="")
    # With MIG the exporter repeats the whole GPU's values for each instance.
    device = _device_of(page.devices, source if known.instance else whole)
    if known.instance and source.instance:
        _device_of(page.devices, whole)
    # A pod that has an instance has not the whole GPU.
    if pod is not None and (known.instance or not source.instance) and len(device.pods) < PODS_MAX:
        device.pods[pod] = None
    before = device.values.setdefault(known.number, value)
    if before != value and (known.instance or not source.instance):
        raise LineError(f"a second value for {name} of {source.uuid}")


def _device_of(devices: Devices, source: Source) -> Device:
    """A device, which is added or completed."""
    key = (source.uuid, source.instance)
    known = devices.get(key)
    if known is None:
        if len(devices) >= GPUS_MAX:
            raise LineError(f"more than {GPUS_MAX} GPUs and instances")
        known = devices[key] = Device(source, {}, {}, {})
    elif known.source != source:
        # Not every line has every label: combine all lines of a GPU; where they differ, the first wins.
        source = Source._make(old or new for old, new in zip(known.source, source, strict=True))
        known = devices[key] = known._replace(source=source)
    return known


@functools.lru_cache(LABEL_SETS_MAX)
def labels_of(text: str) -> Line:
    """What a line's labels, in their braces, say. Raises ValueError."""
    if not text:
        raise LineError("no labels")
    try:
        (family,) = text_string_to_metric_families(f"x{text} 0")
        (sample,) = family.samples
    except Exception as error:
        # The parser has no exception of its own and raises IndexError for some texts.
        raise LineError(f"malformed: {type(error).__name__}") from None
    # Normalise the spellings: UUID and gpu_uuid, modelName and model_name, GPU_I_ID and gpu_i_id.
    labels = {name.replace("_", "").lower(): value[:_LABEL_MAX] for name, value in sample.labels.items()}
    index = labels.get("gpu", "")
    pod = labels.get("pod", ""), labels.get("namespace", ""), labels.get("container", "")
    source = Source(
        uuid=labels.get("uuid") or labels.get("gpuuuid") or "",
        index=int(index) if index.isascii() and index.isdigit() and len(index) < 6 else 0,
        model=labels.get("modelname", ""),
        pci=normalize(labels.get("pcibusid", "")),
        driver_version=labels.get("dcgmfidriverversion") or labels.get("dcgmfisystemdriverversion") or "",
        instance=labels.get("gpuiid", ""),
        profile=labels.get("gpuiprofile", ""),
    )
    component = None
    if switch := labels.get("nvswitch"):
        # The exporter's lines of a switch have its number, those of its links its name.
        component = "nvswitch", f"nvswitch{switch}" if switch.isascii() and switch.isdigit() else switch
    elif labels.get("cpu") and not labels.get("cpucore"):
        component = "cpu", labels["cpu"]
    return Line(source, pod if pod[0] else None, labels.get("nvlink", ""), component)


def value_of(text: str) -> float:
    """A line's value; an int where it is written as one, since some fields differ in that. Raises LineError."""
    parts = text.split()
    if not 1 <= len(parts) <= 2:  # The second is a timestamp.
        raise LineError("no value, or more than one")
    try:
        if "_" in parts[0]:
            raise ValueError
        value = int(parts[0]) if parts[0].lstrip("+-").isdigit() else float(parts[0])
    except ValueError:
        raise LineError(f"{parts[0][:32]!r} is not a number") from None
    if not abs(value) < math.inf:
        raise LineError(f"the value is {value}")
    if isinstance(value, int) and value.bit_length() > 64:
        raise LineError(f"{parts[0][:32]!r} has more than 64 bits")
    return value
