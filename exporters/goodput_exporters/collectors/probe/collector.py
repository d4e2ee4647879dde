"""What this node can do, by the last `goodput probe` on it: the ceilings beside which measured figures lie.

A figure of another name than the probe's own, or without a value, has no series.
"""

from __future__ import annotations

import re

from goodput.probe.kept import KeptFile
from goodput.wire.identity import clean_text
from goodput_exporters.collector import CollectorError, NoData, Settings

FIGURES_MAX = 256
DEVICE_CHARACTERS_MAX = 100
_NAME = re.compile(r"[A-Za-z0-9_]{1,64}")
_SERIES = {
    "FLOP/s": "goodput_probe_flops_per_second",
    "B/s": "goodput_probe_bytes_per_second",
    "1/s": "goodput_probe_files_per_second",
}


class Probe:
    name = "probe"

    def __init__(self, settings: Settings):
        self._file = KeptFile(settings.probe, settings.monotonic_ns)
        self._unix_ns = settings.unix_ns

    def collect(self, families) -> None:
        document = self._file.document()
        if document is None:
            raise NoData("no probe of this node is kept: goodput probe, or --probe FILE")
        made = document.get("time")
        if isinstance(made, int | float) and 0 <= made < 1e12:
            families.add("goodput_probe_age_seconds", {}, max(self._unix_ns() / 1e9 - made, 0.0))
        seen = set()
        for figure in document["figures"]:
            labels = _labels(figure)
            series = _SERIES.get(figure["unit"])
            key = series, *labels.values()
            if series and figure["value"] and labels and key not in seen:
                seen.add(key)
                if len(seen) <= FIGURES_MAX:
                    families.add(series, labels, figure["value"])
        if len(seen) > FIGURES_MAX:
            raise CollectorError(f"{len(seen)} figures of a probe; only {FIGURES_MAX} are exposed")


def _labels(figure: dict) -> dict[str, str]:
    """The labels of a figure; {} for a name or number that the probe does not write."""
    index = figure.get("index")
    if not _NAME.fullmatch(figure["name"]) or not (
        index is None or (type(index) is int and 0 <= index < 1024)
    ):
        return {}
    device = clean_text(figure["device"], DEVICE_CHARACTERS_MAX)
    return {"figure": figure["name"], "index": "" if index is None else str(index), "device": device}
