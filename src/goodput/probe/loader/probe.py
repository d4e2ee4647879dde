"""Probes a DataLoader: the knee over workers, other batch sizes, pinning, loader and copy alone, and what to use."""

from __future__ import annotations

import os
import socket
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from torch.utils.data import DataLoader

from goodput.probe import kept
from goodput.probe.loader import limit, worker_times
from goodput.probe.loader.measure import Copy, Meter
from goodput.probe.loader.sweep import sweep
from goodput.probe.loader.target import TargetError
from goodput.probe.loader.variants import Variants

BATCH_FACTORS = (0.5, 2, 4)
COPY_DEPTH_MAX = 8


@dataclass(frozen=True)
class Options:
    """`copy` is the user's own copy of a batch to the device; None for one like Lightning's and Accelerate's."""

    workers_max: int
    seconds: float = 1.0
    device: str = "cpu"
    copy: Copy | None = None


def probe(loader: DataLoader, options: Options, progress: Callable[[str], None] = lambda _: None) -> dict:
    """Measure the loader as `text.render` and JSON show it. Raises TargetError if it fails.

    Rates are per second; times in `workers` are seconds of one batch of a worker, of the main process for `copy` and
    `transfer`. `gain` is the recommended setting's rate over the loader's own setting.
    """
    with tempfile.NamedTemporaryFile() as file, warnings.catch_warnings():
        # More workers than cores are what is tried here; on a CPU nothing is pinned.
        warnings.filterwarnings("ignore", module="torch.utils.data")
        file.truncate(worker_times.FILE_BYTES)
        variants = Variants(loader, file.name)
        copy = options.copy or copier(options.device)
        try:
            meter = Meter(file.name, copy, options.seconds)
            return _probe(variants, meter, options, progress)
        except (TypeError, ValueError) as error:
            raise TargetError(f"PyTorch rejects the loader's settings: {error}") from error


def _probe(variants: Variants, meter: Meter, options: Options, progress) -> dict:
    loader = variants.loader
    points = sweep(
        lambda workers: meter.point(variants.make(workers)),
        options.workers_max,
        lambda workers: progress(f"measuring {workers} worker{'s'[workers == 1 :]}"),
    )
    best = limit.knee(points)
    now = next((point for point in points if point.workers == loader.num_workers), None)
    if now is None:
        progress(f"measuring {loader.num_workers} workers, the setting now")
        now = meter.point(variants.make(loader.num_workers))
    progress("measuring the loader and the copy alone")
    alone = {
        "loader": meter.point(variants.make(best.workers), with_copy=False).rate,
        "copy": meter.copy_alone(variants.make(0)),
        "both": best.rate,
    }
    pinning = _pinning(variants, meter, best, options, progress)
    pin = better_pin(loader.pin_memory, pinning)
    # Fewer workers or more are recommended only for a rate that is better beyond the measurement's noise.
    keep = now.workers <= best.workers and now.rate >= limit.CLOSE * best.rate
    found = limit.binding(points)
    device = torch.device(options.device).type
    return {
        "dataset": type(loader.dataset).__name__,
        "samples": _length(loader.dataset),
        "samples_read": None if variants.is_iterable else variants.samples_read,
        "batch_size": loader.batch_size or variants.batch_size,
        "now": {"num_workers": now.workers, "pin_memory": loader.pin_memory, "rate": now.rate},
        "workers": [asdict(point) | {"idle": point.idle if point.workers else 0.0} for point in points],
        "knee": best.workers,
        "limit": asdict(found),
        "alone": alone,
        "batch_sizes": _batch_sizes(variants, meter, best, progress),
        "pinning": pinning,
        "copy": None
        if device == "cpu"
        else copied(meter.batch_bytes, alone["copy"], kept.load(socket.gethostname())),
        "use": {"num_workers": now.workers if keep else best.workers, "pin_memory": pin},
        "gain": 1.0 if keep else best.rate / now.rate,
        "notes": _notes(variants, options),
    }


def _batch_sizes(variants: Variants, meter: Meter, best: limit.Point, progress) -> list[dict]:
    """Samples a second by batch size, with the workers of the knee; empty where the size cannot be changed."""
    size = variants.batch_size
    if size is None:
        return []
    found = [{"batch_size": size, "samples_per_second": best.rate * best.samples_per_batch}]
    length = _length(variants.loader.dataset)
    for other in (round(size * factor) for factor in BATCH_FACTORS):
        if other < 1 or other == size or (length is not None and other > length):
            continue
        progress(f"measuring batches of {other}")
        point = meter.point(variants.make(best.workers, batch_size=other))
        found.append({"batch_size": other, "samples_per_second": point.rate * point.samples_per_batch})
    return sorted(found, key=lambda one: one["batch_size"])


def _pinning(variants: Variants, meter: Meter, best: limit.Point, options: Options, progress) -> dict | None:
    """Batches a second with pinned and with pageable memory; None without an accelerator."""
    if torch.device(options.device).type == "cpu":
        return None
    progress("measuring pinned memory")
    pinned, pageable = (meter.point(variants.make(best.workers, pin=pin)).rate for pin in (True, False))
    return {"pinned": pinned, "pageable": pageable}


def better_pin(now: bool, pinning: dict | None) -> bool:
    """Whether to pin memory: as now, unless the other way is a tenth faster."""
    if pinning is None:
        return now
    rates = {True: pinning["pinned"], False: pinning["pageable"]}
    return not now if rates[not now] > limit.STILL_FASTER * rates[now] else now


def copied(size: int, rate: float, document: dict | None) -> dict:
    """Bytes of a batch and bytes a second of its copy, and the share of the node's pinned copies, None if unknown."""
    ceiling = kept.value(document, "h2d_pinned")
    return {
        "bytes": size,
        "bytes_per_second": size * rate,
        "of_node": size * rate / ceiling if ceiling else None,
    }


def _notes(variants: Variants, options: Options) -> list[str]:
    loader, notes = variants.loader, []
    length = _length(loader.dataset)
    if variants.is_iterable:
        notes.append(
            "An iterable dataset decides itself what each worker reads: another number of workers keeps the order "
            "and content of batches only if it divides its samples by get_worker_info()."
        )
    elif length and variants.samples_read > 2 * length:
        notes.append(
            f"The dataset was read {variants.samples_read / length:.1f} times: reads after the first may have come "
            "from the page cache, and storage may limit a larger dataset, or a first epoch, more."
        )
    if type(loader).__iter__ is not DataLoader.__iter__:
        notes.append(f"What {type(loader).__name__} changes of DataLoader was left out.")
    cores = len(os.sched_getaffinity(0))
    if options.device == "cpu" and options.copy is None:
        notes.append("There is no accelerator: batches are not copied unless they have a method to().")
    notes.append(f"Measured alone on {cores} cores; ranks that share the node share cores and storage.")
    return notes


def _length(dataset: object) -> int | None:
    try:
        return len(dataset)  # type: ignore[arg-type]
    except TypeError:
        return None


def copier(device: str) -> Copy:
    """Copies the tensors of a batch, and what else has `to`, to the device, and waits until they are there."""
    where = torch.device(device)

    def copy(batch: object) -> None:
        _move(batch, where, COPY_DEPTH_MAX)
        if where.type != "cpu":
            torch.accelerator.synchronize(where)

    return copy


def _move(batch: object, device: torch.device, depth: int) -> object:
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if hasattr(batch, "to"):
        return batch.to(device)  # type: ignore[attr-defined]
    if depth and isinstance(batch, dict):
        return [_move(value, device, depth - 1) for value in batch.values()]
    if depth and isinstance(batch, list | tuple):
        return [_move(value, device, depth - 1) for value in batch]
    return batch
