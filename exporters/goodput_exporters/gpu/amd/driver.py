"""AMD GPUs from the amdgpu driver's sysfs files, completed by AMD's amdsmi package where that is installed.

sysfs comes first because the kernel keeps its files and units stable, while amdsmi renames its keys between releases.
A fast sample of 8 GPUs reads 40 small files in 0.4 ms. Error counts make the driver query the hardware, so they are
read every 30 s; they count since the driver was loaded. A GPU that is gone stays in the samples as lost.

`activity` is the driver's own coarse measure over an undocumented time. PCIe speed and width are those of the GPU's
own link; behind a bridge on its board that is not the slot's.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from goodput_exporters.collector import NoData
from goodput_exporters.gpu.amd.sysfs import (
    PERCENT_MAX,
    VENDOR,
    Card,
    error_counts,
    find_cards,
    pids_by_gpu,
)
from goodput_exporters.gpu.drivers import Options
from goodput_exporters.gpu.pci import normalize
from goodput_exporters.gpu.sample import GPUS_MAX, PROBLEMS_MAX, TEXT_MAX, Gpu, Sample
from goodput_exporters.system.files import CounterFiles
from goodput_exporters.system.interval import Interval

_ERRORS_SECONDS = 30.0


class Amd:
    name = "amd"

    def __init__(
        self,
        options: Options,
        smi: Any = None,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ):
        self._sysfs, self._procfs = options.sysfs, options.procfs
        self._monotonic_ns = monotonic_ns
        self._smi = smi
        self._handles: dict[str, object] = {}
        self._cards: list[Card] = []
        self._lost: dict[str, Gpu] = {}
        self._errors: dict[str, dict[str, float]] = {}
        self._blocks: dict[str, dict[str, float]] = {}  # by file
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
        self._open_smi()

    def close(self) -> None:
        if self._handles:
            self._handles = {}
            try:
                self._smi.amdsmi_shut_down()
            except Exception:
                pass  # The process ends after this.

    def sample(self, full: bool) -> Sample:
        files = CounterFiles()
        if full:
            self._find_again(files)
        pids = pids_by_gpu(self._sysfs, self._procfs, files) if full else None
        if full and self._errors_interval.is_due():
            self._errors = {
                card.gpu.uuid: error_counts(card.root, files, self._blocks) for card in self._cards
            }
        gpus = [self._gpu(card, full, pids, files) for card in self._cards]
        problems, self._problems = [*self._problems, *files.problems], []
        return Sample(
            driver=self.name,
            monotonic_ns=self._monotonic_ns(),
            gpus=[*gpus, *self._lost.values()][:GPUS_MAX],
            full=full,
            problems=[text[:TEXT_MAX] for text in problems[:PROBLEMS_MAX]],
        )

    def _gpu(self, card: Card, full: bool, pids_by_gpu, files: CounterFiles) -> Gpu:
        readings: dict[str, float] = {}
        for file in card.files:
            if (file.fast or full) and file.key not in readings:
                value = files.read(file.path, file.parse)
                if value is not None:
                    readings[file.key] = value
        self._complete(card, readings)
        pids = None
        if full:
            readings.update(self._errors.get(card.gpu.uuid, {}))
            # None for a GPU that KFD does not list, or whose address is unknown: it may well have processes.
            pids = (pids_by_gpu or {}).get(card.gpu.pci)
            if pids is not None:
                readings["processes"] = float(len(pids))
        return replace(card.gpu, readings=readings, pids=pids)

    def _find_again(self, files: CounterFiles) -> None:
        """List the GPUs again; one that is gone stays in the samples as lost."""
        before = {card.gpu.uuid: card.gpu for card in self._cards} | self._lost
        found = find_cards(self._sysfs, files, {card.root: card for card in self._cards})
        self._cards = [card._replace(gpu=self._with_model(card.gpu)) for card in found]
        now = {card.gpu.uuid for card in self._cards}
        why = f"no longer in {self._sysfs}/class/drm"[:TEXT_MAX]
        self._lost = {
            uuid: replace(gpu, lost=True, why=why) for uuid, gpu in before.items() if uuid not in now
        }

    def _open_smi(self) -> None:
        """Find each GPU's amdsmi handle, where the package is installed and starts."""
        try:
            if self._smi is None and self._sysfs == "/sys":
                self._smi = importlib.import_module("amdsmi")
            if self._smi is None:
                return
            self._smi.amdsmi_init()
            for handle in self._smi.amdsmi_get_processor_handles():
                self._handles[normalize(self._smi.amdsmi_get_gpu_device_bdf(handle))] = handle
        except ImportError:
            pass
        except Exception as error:
            self._problems.append(f"amdsmi: {type(error).__name__}: {error}")
        self._cards = [card._replace(gpu=self._with_model(card.gpu)) for card in self._cards]

    def _with_model(self, gpu: Gpu) -> Gpu:
        if gpu.model.startswith("AMD 0x") or gpu.model == "AMD":
            name = self._query(gpu, "amdsmi_get_gpu_asic_info").get("market_name")
            if isinstance(name, str) and name not in ("", "N/A"):
                return replace(gpu, model=name[:TEXT_MAX])
        return gpu

    def _query(self, gpu: Gpu, function: str) -> dict:
        """amdsmi's answer for a GPU, empty where it has none: what it supports differs by chip and release."""
        try:
            answer = getattr(self._smi, function)(self._handles[gpu.pci])
            return answer if isinstance(answer, dict) else {}
        except Exception:
            return {}

    def _complete(self, card: Card, readings: dict[str, float]) -> None:
        """Add readings that sysfs lacks. amdsmi's unknown is "N/A", or the type's largest number."""
        if card.gpu.pci not in self._handles:
            return
        if "energy" not in readings:
            answer = self._query(card.gpu, "amdsmi_get_energy_count")
            ticks = _number(answer.get("energy_accumulator", answer.get("power")))
            microjoules = _number(answer.get("counter_resolution"))
            if ticks is not None and microjoules:
                readings["energy"] = ticks * microjoules / 1e6
        if "power" not in readings:
            answer = self._query(card.gpu, "amdsmi_get_power_info")
            for key in ("current_socket_power", "average_socket_power", "socket_power"):
                watts = _number(answer.get(key), 10_000)
                if watts is not None:
                    readings.setdefault("power", float(watts))
        for unit, name in (("utilization", "gfx_activity"), ("memory_controller", "umc_activity")):
            key = f"activity/{unit}"
            if key not in readings:
                percent = _number(self._query(card.gpu, "amdsmi_get_gpu_activity").get(name), PERCENT_MAX)
                if percent is not None:
                    readings[key] = percent / 100


def _no_gpu(sysfs: str) -> str:
    return f"{sysfs}/class/drm: no GPU of vendor {VENDOR}"


def _number(value: object, most: float = 2.0**63) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if 0 <= value < most else None
