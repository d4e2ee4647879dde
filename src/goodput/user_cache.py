"""Files that goodput keeps for a user between processes: in $XDG_CACHE_HOME/goodput, else in ~/.cache/goodput."""

from __future__ import annotations

import contextlib
import os
import tempfile


def path_of(*parts: str) -> str:
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(cache, "goodput", *parts)


def replace(path: str, text: str) -> bool:
    """Write the file in one step, so that readers find the old or the new one; False if it cannot be written."""
    draft = ""
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        descriptor, draft = tempfile.mkstemp(dir=os.path.dirname(path))
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(draft, path)
    except OSError:
        if draft:
            with contextlib.suppress(OSError):
                os.unlink(draft)
        return False
    return True
