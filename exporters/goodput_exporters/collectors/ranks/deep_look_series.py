"""The series of a rank's last deep look, and its exemplar, from the file beside its page. Costs about 50 us per scrape."""

from __future__ import annotations

import contextlib
import os

from goodput.rank_page import deep_look
from goodput.stack_samples import sample_file
from goodput_exporters.collectors.ranks.rank import Rank


def look_of(rank: Rank) -> dict | None:
    """What is known of the rank's deep looks, None without one. Raises LookError for an invalid file."""
    return deep_look.read(rank.reader.path, os.fstat(rank.reader.fd).st_uid)


def exemplar_of(rank: Rank, found: dict | None) -> tuple | None:
    """The step of the last deep look as the fields of a metrics.Exemplar: which one it is, and the file with the look."""
    seen = found["seen"] if found is not None else None
    if found is None or not seen or not seen["wall_ns"]:
        return None
    name = os.path.basename(deep_look.path_of(rank.reader.path))
    labels = (("step", str(seen["step"])), ("attempt", str(found["attempt"])), ("deep_look", name))
    return labels, seen["wall_ns"] / 1e9, seen["unix_ns"]


def add_look(families, rank: Rank, found: dict, unix_ns: int, h2d_reached: float | None = None) -> None:
    """Add the last deep look's results and the cost of all; `h2d_reached` is what the node's copies reach, in bytes/s."""
    of_rank = {"run": rank.identity.run, "rank": str(rank.identity.rank)}
    for outcome, count in (("done", "looks"), ("skipped", "skipped"), ("failed", "failed")):
        families.add("goodput_deep_looks_total", {**of_rank, "outcome": outcome}, found[count])
    families.add("goodput_deep_look_cost_seconds_total", of_rank, found["cost_ns"] / 1e9)
    seen = found["seen"]
    if seen is None:
        return
    kinds = {
        **seen["states_ns"],
        "communication_hidden": seen["communication_hidden_ns"],
        "copy_hidden": seen["copy_hidden_ns"],
        "kernel": seen["kernel_ns"],
    }
    for kind, ns in kinds.items():
        families.add("goodput_deep_look_seconds", {**of_rank, "kind": kind}, ns / 1e9)
    families.add("goodput_deep_look_age_seconds", of_rank, max(unix_ns - seen["unix_ns"], 0) / 1e9)
    rate = deep_look.h2d_rate(seen)
    families.add("goodput_deep_look_h2d_bytes_per_second", of_rank, rate)
    if rate is not None and h2d_reached:
        families.add("goodput_deep_look_h2d_reached_ratio", of_rank, rate / h2d_reached)


def remove_look(page_path: str) -> None:
    """Remove the files beside a removed page: its deep look and its sampled stacks, where there are any."""
    for path in (deep_look.path_of(page_path), sample_file.path_of(page_path)):
        with contextlib.suppress(OSError):  # There is none, or it belongs to another user.
            os.unlink(path)
