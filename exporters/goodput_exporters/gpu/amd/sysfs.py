"""AMD GPUs in sysfs: class/drm/card*/device of vendor 0x1002 with hwmon and ras, and the processes in class/kfd.

An absent file is no reading; one that is unreadable or malformed costs its reading and is a problem. Never read are
pcie_bw, which blocks for a second, and xgmi_error, which resets what it shows. Sources: the kernel's documentation of
amdgpu (power, thermal, RAS), of hwmon's units and of KFD's topology.
"""

from __future__ import annotations

import glob
import itertools
import os
import re
from collections.abc import Callable
from typing import NamedTuple

from msgspec.structs import replace

from goodput_exporters.collector import CollectorError, ParseError
from goodput_exporters.gpu.amd import gpu_metrics
from goodput_exporters.gpu.pci import normalize
from goodput_exporters.gpu.sample import GPUS_MAX, PROCESSES_MAX, TEXT_MAX, Gpu
from goodput_exporters.system.files import CounterFiles, label, list_names, parse_count, read_bytes

VENDOR = "0x1002"
_CARD = re.compile(r"card\d+")
_PIDS_SCANNED_MAX = 4096
_SENSORS_MAX = 64
_METRICS_BYTES_MAX, _BAD_PAGES_BYTES_MAX = 16384, 1 << 20
# Flags in ras/gpu_vram_bad_pages.
_PAGE_FLAGS = {"R": "retired", "P": "pending", "F": "unreservable"}
# PCIe generation by transfer rate (GT/s per lane).
_GENERATIONS = {2.5: 1.0, 5.0: 2.0, 8.0: 3.0, 16.0: 4.0, 32.0: 5.0, 64.0: 6.0}


class File(NamedTuple):
    """A reading's file and its parser; several files for one key are tried in order."""

    key: str
    path: str
    parse: Callable[[str], float | None]
    fast: bool = False


class Card(NamedTuple):
    """A GPU and its files."""

    gpu: Gpu
    root: str
    files: tuple[File, ...]


def find_cards(sysfs: str, files: CounterFiles, known: dict[str, Card] | None = None) -> list[Card]:
    """The AMD GPUs in class/drm, by card number; those in `known` (by folder) are reused."""
    root = os.path.join(sysfs, "class/drm")
    names = [name for name in files.names(root) if _CARD.fullmatch(name)]
    version = _text(f"{sysfs}/module/amdgpu/version", files)
    cards: dict[str, Card] = {}
    for name in sorted(names, key=lambda name: int(name[4:])):
        device = os.path.join(root, name, "device")
        # The kernel caches the vendor id, so reading it wakes no device.
        if len(cards) < GPUS_MAX and _text(f"{device}/vendor", files).lower() == VENDOR:
            card = (known or {}).get(device) or _card(device, len(cards), version, files)
            cards.setdefault(card.gpu.uuid, card)
    return _numbered(list(cards.values()))


def _numbered(cards: list[Card]) -> list[Card]:
    """Indices in the order of the cards: one that is here keeps its own, unless one before it came back to it."""
    indices = itertools.accumulate(
        (card.gpu.index for card in cards), lambda before, own: max(before + 1, own)
    )
    return [
        card if card.gpu.index == index else card._replace(gpu=replace(card.gpu, index=index))
        for card, index in zip(cards, indices, strict=True)
    ]


def _card(device: str, index: int, driver_version: str, files: CounterFiles) -> Card:
    slot = re.search(r"^PCI_SLOT_NAME=(\S+)$", _text(f"{device}/uevent", files), re.MULTILINE)
    pci = normalize(slot[1] if slot else os.path.basename(os.path.realpath(device)))
    unique = _text(f"{device}/unique_id", files).lower().removeprefix("0x")
    # In a virtual machine the id may be all zeros.
    unique = unique if re.fullmatch(r"[0-9a-f]{1,32}", unique) and unique.strip("0") else ""
    model = _text(f"{device}/product_name", files) or f"AMD {_text(f'{device}/device', files)}".strip()
    gpu = Gpu(
        uuid=unique or pci or os.path.basename(os.path.dirname(device)),
        index=index,
        model=model[:TEXT_MAX],
        pci=pci,
        driver_version=driver_version[:TEXT_MAX],
    )
    return Card(gpu, device, tuple(_files(device, files)))


def _files(device: str, files: CounterFiles):
    """Yield the files of one GPU. Of several for one key, the first with a value is used."""
    yield File("activity/utilization", f"{device}/gpu_busy_percent", parse_percent, fast=True)
    yield File("activity/memory_controller", f"{device}/mem_busy_percent", parse_percent, fast=True)
    yield File("memory/used", f"{device}/mem_info_vram_used", parse_whole, fast=True)
    yield File("memory/total", f"{device}/mem_info_vram_total", parse_whole)
    hwmon = _hwmon(device)
    if hwmon is not None:
        yield from _sensors(hwmon, files)
    yield File("clock/sm", f"{device}/pp_dpm_sclk", parse_dpm)
    yield File("clock/memory", f"{device}/pp_dpm_mclk", parse_dpm)
    yield File("clock_limit/sm/max", f"{device}/pp_dpm_sclk", parse_dpm_highest)
    yield File("clock_limit/memory/max", f"{device}/pp_dpm_mclk", parse_dpm_highest)
    yield File("pcie_replays", f"{device}/pcie_replay_count", parse_whole)
    for kind in ("current", "max"):
        yield File(f"pcie_generation/{kind}", f"{device}/{kind}_link_speed", parse_generation)
        yield File(f"pcie_lanes/{kind}", f"{device}/{kind}_link_width", parse_lanes)


def _hwmon(device: str) -> str | None:
    return min(glob.iglob(f"{glob.escape(device)}/hwmon/hwmon*"), default=None)


def _sensors(hwmon: str, files: CounterFiles):
    # Which of the two powers exists depends on the chip; where both do, the average is smoother.
    yield File("power", f"{hwmon}/power1_average", parse_micro, fast=True)
    yield File("power", f"{hwmon}/power1_input", parse_micro, fast=True)
    yield File("energy", f"{hwmon}/energy1_input", parse_micro, fast=True)
    yield File("power_limit", f"{hwmon}/power1_cap", parse_micro)
    for kind in ("default", "min", "max"):
        yield File(f"power_setting/{kind}", f"{hwmon}/power1_cap_{kind}", parse_micro)
    yield File("fan", f"{hwmon}/pwm1", parse_pwm)
    labels = {}
    names = [name for name in files.names(hwmon) if re.fullmatch(r"(temp|freq)\d+_input", name)]
    for name in names[:_SENSORS_MAX]:
        label = _text(f"{hwmon}/{name.replace('_input', '_label')}", files)
        labels.setdefault((name[:4], label), f"{hwmon}/{name}")
    # MI300 has no edge sensor: its core temperature is the junction's.
    for kind, label, key, parse in (
        ("temp", "edge", "temperature/core", parse_milli),
        ("temp", "junction", "temperature/core", parse_milli),
        ("temp", "junction", "temperature/junction", parse_milli),
        ("temp", "mem", "temperature/memory", parse_milli),
        ("freq", "sclk", "clock/sm", parse_whole),
        ("freq", "mclk", "clock/memory", parse_whole),
    ):
        if (kind, label) in labels:
            yield File(key, labels[kind, label], parse)
    # The junction's critical temperature is where the firmware begins to throttle, the emergency's where it shuts down.
    for label, limit, key in (
        ("junction", "crit", "slowdown"),
        ("junction", "emergency", "shutdown"),
        ("mem", "crit", "memory_max"),
    ):
        if path := labels.get(("temp", label)):
            yield File(f"temperature_limit/{key}", path.replace("_input", f"_{limit}"), parse_milli)


def _text(path: str, files: CounterFiles) -> str:
    """A file's text without the space around it; "" where it is absent or cannot be read."""
    return files.read(path, str.strip) or ""


def error_counts(device: str, files: CounterFiles) -> dict[str, dict[str, float]]:
    """Errors by block (memory, caches, engines, links) and kind, from ras/*_err_count; without those not read."""
    counts: dict[str, dict[str, float]] = {}
    for path in sorted(glob.iglob(f"{glob.escape(device)}/ras/*_err_count"))[:_SENSORS_MAX]:
        errors = files.read(path, lambda text: parse_errors(text) if text.strip() else {})
        if errors:
            counts[os.path.basename(path).removesuffix("_err_count")] = errors
    return counts


def bad_pages(device: str, files: CounterFiles) -> dict[str, float]:
    """Readings from ras/gpu_vram_bad_pages; none where the file is absent."""
    path = f"{device}/ras/gpu_vram_bad_pages"
    found = files.read(path, parse_bad_pages, bytes_max=_BAD_PAGES_BYTES_MAX)
    return {f"pages_retired/{status}": count for status, count in (found or {}).items()}


def metrics(device: str, files: CounterFiles) -> dict:
    """The fields of gpu_metrics (gpu_metrics.py); none where there is no such file, or it cannot be read."""
    path = f"{device}/gpu_metrics"
    try:
        body = read_bytes(path, _METRICS_BYTES_MAX)
        if body and not gpu_metrics.is_whole(body):
            raise CollectorError(f"{label(path)}: {len(body)} bytes are no whole table")
    except CollectorError as error:
        files.problems.append(str(error))
        return {}
    return gpu_metrics.parse(body or b"")  # An empty one is of a chip without a table.


def pids_by_gpu(sysfs: str, procfs: str, files: CounterFiles) -> dict[str, list[int]] | None:
    """Pids of the processes with memory on a GPU, by PCI address; None without KFD."""
    kfd = os.path.join(sysfs, "class/kfd/kfd")
    try:
        nodes, names = list_names(f"{kfd}/topology/nodes"), list_names(f"{kfd}/proc")
    except CollectorError as error:
        files.problems.append(str(error))
        return None
    if nodes is None or names is None:
        return None
    pids = sorted(int(name) for name in names if name.isascii() and name.isdigit())
    numbers = {}
    for node in nodes:
        number = files.read(f"{kfd}/topology/nodes/{node}/gpu_id", parse_count)
        if number:  # 0 is a CPU.
            properties = f"{kfd}/topology/nodes/{node}/properties"
            numbers[number] = parse_location(_text(properties, files))
            if not numbers[number]:
                files.problems.append(
                    f"{label(properties)}: no location_id, so the processes of this GPU are unknown"
                )
    found: dict[str, list[int]] = {pci: [] for pci in numbers.values()}
    for pid in pids[:_PIDS_SCANNED_MAX]:
        # KFD lists pids of the initial namespace: one that is not in our procfs cannot be identified.
        if os.path.exists(os.path.join(procfs, str(pid))):
            for number, pci in numbers.items():
                held = files.read(f"{kfd}/proc/{pid}/vram_{number}", parse_count)
                if held and len(found[pci]) < PROCESSES_MAX:
                    found[pci].append(pid)
    return found


# Parsers. Each raises ParseError, unless it says otherwise.


def parse_whole(text: str) -> float | None:
    return float(parse_count(text))


def parse_percent(text: str) -> float | None:
    """A ratio; None for 65535 and the like, which mean "not supported"."""
    percent = parse_count(text)
    return percent / 100 if percent <= gpu_metrics.PERCENT_MAX else None


def parse_micro(text: str) -> float | None:
    """Watts from µW, joules from µJ (hwmon)."""
    return parse_count(text) / 1e6


def parse_milli(text: str) -> float | None:
    """Degrees Celsius from thousandths (hwmon); they may be below zero."""
    text = text.strip()
    return -parse_count(text[1:]) / 1000 if text.startswith("-") else parse_count(text) / 1000


def parse_pwm(text: str) -> float | None:
    """A fan's speed as a ratio of the highest, from 0 to 255 (hwmon)."""
    return min(parse_count(text) / 255, 1.0)


def parse_dpm(text: str) -> float | None:
    """Hertz of the level marked with a star, such as `1: 2100Mhz *`; None where none is marked."""
    return next((hertz for hertz, is_current in reversed(_levels(text)) if is_current), None)


def parse_dpm_highest(text: str) -> float | None:
    """Hertz of the highest level; None where there is none, and for a malformed file, of which parse_dpm complains."""
    try:
        return max((hertz for hertz, _ in _levels(text)), default=None)
    except ParseError:
        return None


def _levels(text: str) -> list[tuple[float, bool]]:
    """(hertz, whether it is the current one) of each level of a clock."""
    found = []
    for line in text.splitlines():
        level = re.fullmatch(r"\s*(?:[0-9]+|S):\s*([0-9]{1,9})\s*M[Hh]z\s*(\*?)\s*", line)
        if level is None:
            raise ParseError(f"{line[:40]!r} is not a clock level")
        found.append((int(level[1]) * 1e6, bool(level[2])))
    return found


def parse_generation(text: str) -> float | None:
    """PCIe generation from a rate such as `32.0 GT/s PCIe`; None where unknown."""
    if text.startswith("Unknown"):
        return None
    rate = re.fullmatch(r"([0-9]{1,4}(?:\.[0-9])?)\s*GT/s(?: PCIe)?\s*", text)
    if rate is None:
        raise ParseError(f"{text[:40]!r} is not a link speed")
    return _GENERATIONS.get(float(rate[1]))


def parse_lanes(text: str) -> float | None:
    """Lanes; None for 0 and 255, which mean unknown."""
    lanes = parse_count(text)
    return float(lanes) if 0 < lanes < 255 else None


def parse_errors(text: str) -> dict[str, float]:
    """A block's errors by kind, from `ue: 0`, `ce: 3` and, on newer chips, `de: 0`: uncorrectable, found before use."""
    kinds = {"ue": "uncorrectable", "ce": "correctable", "de": "deferred"}
    counts = {}
    for line in text.splitlines():
        kind, _, count = line.partition(":")
        if kind.strip() in kinds:
            counts[kinds[kind.strip()]] = float(parse_count(count.strip()))
    if not counts.keys() & {"uncorrectable", "correctable"}:
        raise ParseError(f"{text[:40]!r} has neither ue nor ce")
    return counts


def parse_bad_pages(text: str) -> dict[str, float]:
    """Bad pages of memory by status, from lines such as `0x00000001 : 0x00001000 : R`."""
    found = dict.fromkeys(_PAGE_FLAGS.values(), 0.0)
    for line in text.splitlines():
        flag = line.rpartition(":")[2].strip()
        if line.strip() and flag not in _PAGE_FLAGS:
            raise ParseError(f"{line[:40]!r} is not a bad page")
        if flag:
            found[_PAGE_FLAGS[flag]] += 1
    return found


def parse_location(text: str) -> str:
    """The PCI address in a KFD node's properties: location_id is bus, device and function in 16 bits. "" for none."""
    found = dict(re.findall(r"^(location_id|domain) ([0-9]{1,10})$", text, re.MULTILINE))
    if "location_id" not in found:
        return ""
    location = int(found["location_id"])
    bus, slot, function = location >> 8 & 0xFF, location >> 3 & 0x1F, location & 0x7
    return f"{int(found.get('domain', 0)):04x}:{bus:02x}:{slot:02x}.{function:x}"
