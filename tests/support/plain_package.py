"""The package as it is where the recorder's extension was not built: a folder of links to all of it but that.

environ["PYTHONPATH"] = python_path(plain=True)
"""

from __future__ import annotations

import atexit
import functools
import os
import tempfile
from pathlib import Path

from support.paths import PYTHONPATH, ROOT

SOURCE = ROOT / "src" / "goodput"
EXTENSION = "sdk/recorder/_fast."  # and the suffix, which depends on the version of Python


@functools.cache
def plain_package() -> str:
    """A folder for PYTHONPATH, in which the package is."""
    made = tempfile.TemporaryDirectory(prefix="goodput-plain-")
    atexit.register(made.cleanup)
    place, source = Path(made.name, "goodput"), SOURCE
    place.mkdir()
    for inner in (*Path(EXTENSION).parent.parts, ""):
        for entry in source.iterdir():
            is_extension = str(entry.relative_to(SOURCE)).startswith(EXTENSION) and entry.suffix != ".c"
            if entry.name not in (inner, "__pycache__") and not is_extension:
                (place / entry.name).symlink_to(entry)
        if inner:
            place, source = place / inner, source / inner
            place.mkdir()
    return made.name


def python_path(plain: bool) -> str:
    """What a process needs in PYTHONPATH to import the product, with the extension or without, and `support`."""
    return os.pathsep.join([plain_package(), PYTHONPATH]) if plain else PYTHONPATH
