"""AMD GPUs: from libamd_smi where that is installed, what it does not have, or everything, from amdgpu's files in sysfs.

The GPUs are those in sysfs, amdsmi's are matched by PCI address, and processes are KFD's. A library of a version that
is not known, or that does not work, is not used. A fast sample of 8 GPUs reads 48 small files in 0.5 ms. Error counts
make the driver query the hardware, so they are read every 30 s; they count since the driver was loaded. A GPU that is
gone stays in the samples as lost.

`activity` is the driver's own coarse measure over an undocumented time. PCIe speed and width are those of the GPU's
own link; behind a bridge on its board that is not the slot's.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from msgspec.structs import replace

from goodput_exporters.collector import NoData
from goodput_exporters.gpu.amd import gpu_metrics, sysfs
from goodput_exporters.gpu.amd.gpu_metrics import Throttling
from goodput_exporters.gpu.amd.smi import Smi, open_smi
from goodput_exporters.gpu.amd.smi_library import SmiError
from goodput_exporters.gpu.amd.sysfs import VENDOR, Card, find_cards, pids_by_gpu
from goodput_exporters.gpu.drivers import Options
from goodput_exporters.gpu.sample import GPUS_MAX, PROBLEMS_MAX, TEXT_MAX, Event, Gpu, Sample
from goodput_exporters.system.files import CounterFiles
from goodput_exporters.system.interval import Interval

_ERRORS_SECONDS = 30.0
_FAST = ("activity/", "power", "energy", "memory/used")


class Amd:
    """`open_smi` returns the library or raises SmiError."""

    name = "amd"

    def __init__(
        self,
        options: Options,
        open_smi: Callable[[], Smi] = open_smi,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        unix_ns: Callable[[], int] = time.time_ns,
    ):
        self._sysfs, self._procfs = options.sysfs, options.procfs
        self._monotonic_ns, self._unix_ns = monotonic_ns, unix_ns
        self._open_smi = open_smi
        self._smi: Smi | None = None
        self._source = ""  # without `_smi`
        self._cards: list[Card] = []
        self._lost: dict[str, Gpu] = {}
        self._throttling: dict[str, Throttling] = {}  # by UUID
        self._errors: dict[str, dict[str, dict[str, float]]] = {}  # by UUID and block
        self._pages: dict[str, dict[str, float]] = {}  # by UUID
        self._errors_interval = Interval(_ERRORS_SECONDS, monotonic_ns)
        self._problems: list[str] = []

    @staticmethod
    def absence(options: Options) -> str:
        files = CounterFiles()
        # Where a card cannot be read, the driver's process reports it.
        return "" if find_cards(options.sysfs, files) or files.problems else _no_gpu(options.sysfs)

    def open(self) -> None:
        files = CounterFiles()
        self._cards = find_cards(self._sysfs, files)
        self._problems += files.problems
        if not self._cards:
            raise NoData(_no_gpu(self._sysfs))
        try:
            self._smi = self._open_smi()
        except SmiError as error:
            self._leave_smi(error)
        self._cards = [card._replace(gpu=self._with_model(card)) for card in self._cards]

    def close(self) -> None:
        if self._smi is not None:
            self._smi.close()
            self._smi = None

    def sample(self, full: bool) -> Sample:
        files = CounterFiles()
        if full:
            self._find_again(files)
        pids = pids_by_gpu(self._sysfs, self._procfs, files) if full else None
        if full and self._errors_interval.is_due():
            self._read_errors(files)
        now_ns = self._monotonic_ns()
        gpus = [self._gpu(card, full, pids, files, now_ns) for card in self._cards]
        events = self._events()
        problems, self._problems = [*self._problems, *files.problems], []
        return Sample(
            driver=self.name,
            monotonic_ns=self._monotonic_ns(),
            gpus=[*gpus, *self._lost.values()][:GPUS_MAX],
            full=full,
            events=events,
            problems=[text[:TEXT_MAX] for text in problems[:PROBLEMS_MAX]],
            source=(self._smi.source if self._smi else self._source)[:TEXT_MAX] if full else "",
        )

    def _gpu(self, card: Card, full: bool, pids_by_gpu, files: CounterFiles, now_ns: int) -> Gpu:
        smi = self._smi_of(card)
        table = smi.metrics(card.gpu.pci) if smi else {}
        readings = {**gpu_metrics.readings(table), **(smi.readings(card.gpu.pci, full) if smi else {})}
        if not full:
            readings = {key: value for key, value in readings.items() if key.startswith(_FAST)}
        for file in card.files:
            if (file.fast or full) and file.key not in readings:
                value = files.read(file.path, file.parse)
                if value is not None:
                    readings[file.key] = value
        # amdsmi has the engines of a GPU with partitions in structures that differ by release.
        if full and (not table or "activity/video" not in readings):
            in_sysfs = sysfs.metrics(card.root, files)
            readings = {**gpu_metrics.readings(in_sysfs), **readings}
            table = table or in_sysfs
        pids = None
        if full:
            throttling = self._throttling.setdefault(card.gpu.uuid, Throttling())
            readings |= throttling.update(table, now_ns)
            readings |= self._pages.get(card.gpu.uuid, {})
            readings |= _error_readings(self._errors.get(card.gpu.uuid, {}))
            # None for a GPU that KFD does not list, or whose address is unknown: it may well have processes.
            pids = (pids_by_gpu or {}).get(card.gpu.pci)
            if pids is not None:
                readings["processes"] = float(len(pids))
        event_kinds = smi.event_kinds(card.gpu.pci) if smi and full else []
        return replace(card.gpu, readings=readings, pids=pids, event_kinds=event_kinds)

    def _smi_of(self, card: Card) -> Smi | None:
        return self._smi if self._smi is not None and card.gpu.pci in self._smi else None

    def _read_errors(self, files: CounterFiles) -> None:
        """Without the last counts of a block that cannot be read, the sum of all would fall and rise again."""
        for card in self._cards:
            uuid, pci = card.gpu.uuid, card.gpu.pci
            smi = self._smi_of(card)
            counts = (smi.error_counts(pci) if smi else {}) or sysfs.error_counts(card.root, files)
            self._errors[uuid] = {**self._errors.get(uuid, {}), **counts}
            pages = (smi.bad_pages(pci) if smi else {}) or sysfs.bad_pages(card.root, files)
            self._pages[uuid] = pages or self._pages.get(uuid, {})

    def _find_again(self, files: CounterFiles) -> None:
        """List the GPUs again; one that is gone stays in the samples as lost."""
        before = {card.gpu.uuid: card.gpu for card in self._cards}
        self._cards = find_cards(self._sysfs, files, {card.root: card for card in self._cards})
        now = {card.gpu.uuid for card in self._cards}
        why = f"no longer in {self._sysfs}/class/drm"[:TEXT_MAX]
        known = before | self._lost
        self._lost = {
            uuid: replace(gpu, lost=True, why=why) for uuid, gpu in known.items() if uuid not in now
        }
        if now == before.keys():
            return
        for by_uuid in (self._throttling, self._errors, self._pages):
            for uuid in by_uuid.keys() - now:
                del by_uuid[uuid]
        if self._smi is not None:
            try:
                self._smi.reopen()
            except SmiError as error:
                self._leave_smi(error)
        self._cards = [card._replace(gpu=self._with_model(card)) for card in self._cards]

    def _with_model(self, card: Card) -> Gpu:
        smi = self._smi_of(card)
        if smi and (card.gpu.model.startswith("AMD 0x") or card.gpu.model == "AMD"):
            return replace(card.gpu, model=smi.model(card.gpu.pci)[:TEXT_MAX] or card.gpu.model)
        return card.gpu

    def _leave_smi(self, error: SmiError) -> None:
        self._smi = None
        self._source = f"sysfs ({error})"

    def _events(self) -> list[Event]:
        if self._smi is None:
            return []
        uuids = {card.gpu.pci: card.gpu.uuid for card in self._cards}
        events = self._smi.events(self._unix_ns(), uuids)
        self._problems, self._smi.problems = [*self._problems, *self._smi.problems], []
        return events


def _error_readings(blocks: dict[str, dict[str, float]]) -> dict[str, float]:
    """Errors of each block, and of all together."""
    readings: dict[str, float] = {}
    for block, counts in blocks.items():
        for kind, count in counts.items():
            readings[f"ecc_location/{kind}/volatile/{block}"] = count
            total = f"ecc/{kind}/volatile"
            readings[total] = readings.get(total, 0.0) + count
    return readings


def _no_gpu(sysfs_path: str) -> str:
    return f"{sysfs_path}/class/drm: no GPU of vendor {VENDOR}"
