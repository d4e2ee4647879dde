"""dcgm-exporter's list of counters (its -f option): the fields to serve, their type and help.

    DCGM_FI_DEV_GPU_TEMP, gauge, GPU temperature (in C).

Lines that begin with # are comments, spaces around a column are none of it, and a help with commas is in quotes.
"""

from __future__ import annotations

import csv
import io
import re
from typing import NamedTuple

from goodput_exporters.gpu.nvidia import dcgm_components
from goodput_exporters.gpu.nvidia.dcgm_field_table import UNWATCHED
from goodput_exporters.gpu.nvidia.dcgm_fields import field_of_name
from goodput_exporters.system.files import open_regular

BYTES_MAX, COUNTERS_MAX = 1 << 20, 512
KINDS = ("gauge", "counter", "histogram", "summary", "label")
_NAME = re.compile(r"DCGM_(FI|EXP)_[A-Z0-9_]{1,90}")


class Counter(NamedTuple):
    """One line; of kind label it is no series but a label of the others."""

    name: str
    kind: str
    help: str


def read_counters(path: str) -> tuple[Counter, ...]:
    """The file's counters, in order. Raises ValueError, which says what is wrong and where."""
    try:
        with open_regular(path) as file:
            body = file.read(BYTES_MAX + 1)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    if len(body) > BYTES_MAX:
        raise ValueError(f"{path}: more than {BYTES_MAX} bytes")
    counters = parse_counters(body.decode("utf-8-sig", "replace"), path)
    if not counters:
        raise ValueError(f"{path}: no counter in it")
    return counters


def parse_counters(text: str, source: str = "counters") -> tuple[Counter, ...]:
    """The counters of a file's text. Raises ValueError."""
    found: dict[str, Counter] = {}
    for at, line in enumerate(text.split("\n"), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        where = f"{source}:{at}"
        try:
            columns = [
                column.strip() for column in next(csv.reader(io.StringIO(line), skipinitialspace=True))
            ]
        except csv.Error as error:
            raise ValueError(f"{where}: {error}") from None
        if len(columns) != 3:
            raise ValueError(f"{where}: {len(columns)} columns instead of three: field, type, help")
        counter = Counter(*columns)
        if not _NAME.fullmatch(counter.name):
            raise ValueError(f"{where}: {counter.name[:64]!r} is no name of a field (DCGM_FI_…)")
        if counter.kind not in KINDS:
            raise ValueError(f"{where}: type {counter.kind[:32]!r} is none of {', '.join(KINDS)}")
        if counter.name in found:
            raise ValueError(f"{where}: {counter.name} is there twice")
        found[counter.name] = counter
        if len(found) > COUNTERS_MAX:
            raise ValueError(f"{where}: more than {COUNTERS_MAX} counters")
    return tuple(found.values())


def further_fields(counters: tuple[Counter, ...]) -> tuple[str, ...]:
    """Names of the fields that are only read where a list names them: of those that have no reading of their own here, which
    are read as they are, and of those that take long to measure."""
    return tuple(
        name
        for name, kind, _ in counters
        if kind != "label"
        and name.startswith("DCGM_FI_")
        and name not in dcgm_components.BY_NAME
        and ((field := field_of_name(name)) is None or field.number in UNWATCHED)
    )
