"""Small readings of sysfs trees, whatever lies in them: listings, short texts, names that can be labels.

In: paths. Out: sorted names, texts, labels. A file that is absent is None; one that cannot be read raises
CollectorError, which says what and where. A counter file is one short line, so 4 KiB of it are read: a larger
buffer costs more time than the file. A FIFO or a device in a file's place does not block.
It does not know what the files mean.

    for name in listing("/sys/class/infiniband") or (): print(label(name))
"""

from __future__ import annotations

import os
import re

from goodput_exporters.collector import _ABSENT, CollectorError, read_text

FILE_BYTES_MAX = 4096
LABEL_CHARACTERS_MAX = 64
_NUMBERS = re.compile(r"([0-9]+)")


def read(path: str) -> str | None:
    """A short file's text, None where it is absent. Raises CollectorError where it cannot be read."""
    return read_text(path, FILE_BYTES_MAX)


def listing(path: str) -> list[str] | None:
    """A directory's names in natural order, None where there is none. Raises CollectorError."""
    found = names(path)
    return None if found is None else sorted(found, key=natural)


def names(path: str) -> list[str] | None:
    """A directory's names as they come, None where there is none. Raises CollectorError."""
    try:
        return os.listdir(path)
    except OSError as error:
        if error.errno in _ABSENT:
            return None
        raise CollectorError(f"{label(path)}: {error.strerror}") from None


def natural(name: str) -> tuple:
    """A key by which mlx5_2 comes before mlx5_10."""
    parts = _NUMBERS.split(name)
    return tuple(
        (int(part) if len(part) < 20 else 0, part) if at % 2 else part for at, part in enumerate(parts)
    )


def label(name: str) -> str:
    """A name as text that can be exposed: bytes that are no UTF-8 are written as escapes."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


def clean(text: str | None) -> str:
    """A file's text as a label's value: one line, printable, bounded; empty where there is no file."""
    line = (text or "").strip()[: 4 * LABEL_CHARACTERS_MAX]
    return "".join(character for character in line if character.isprintable())[:LABEL_CHARACTERS_MAX]
