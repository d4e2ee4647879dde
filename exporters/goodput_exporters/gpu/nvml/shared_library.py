"""Whether a shared library is nowhere that the dynamic loader looks, told without loading it.

In: a library's file name, the environment, files. Out: True only where no place has it: $LD_LIBRARY_PATH, the loader's
usual folders and its cache (ld.so(8)). A system whose loader keeps no cache, as musl's or NixOS', is one where it
cannot be told, which is False; so is a cache that cannot be read. Names are looked for in the cache's bytes, whatever
its format. 0.1 ms. It does not know whether the library works, nor run paths that a program has of its own.

    is_nowhere("libnvidia-ml.so.1", os.environ)
"""

from __future__ import annotations

import os
from collections.abc import Mapping

CACHE = "/etc/ld.so.cache"
CACHE_BYTES_MAX = 8 << 20
FOLDERS = ("/lib", "/usr/lib", "/lib64", "/usr/lib64", "/usr/lib/wsl/lib")


def is_nowhere(name: str, environ: Mapping[str, str], cache: str = CACHE) -> bool:
    named = filter(None, environ.get("LD_LIBRARY_PATH", "").replace(";", ":").split(":"))
    is_there = any(os.path.exists(os.path.join(folder, name)) for folder in (*named, *FOLDERS))
    if is_there or name in environ.get("LD_PRELOAD", ""):
        return False
    try:
        with open(cache, "rb") as file:
            known = file.read(CACHE_BYTES_MAX + 1)
    except OSError:
        return False
    return len(known) <= CACHE_BYTES_MAX and name.encode() + b"\0" not in known
