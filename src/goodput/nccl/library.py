"""Where the profiler plugin is, whether NCCL is here, and the variable with which NCCL loads the plugin.

environ.update(variables(environ))    # {"NCCL_PROFILER_PLUGIN": "/usr/lib/.../_profiler.so"}
"""

from __future__ import annotations

import glob
import os
import sys
import sysconfig

VARIABLE = "NCCL_PROFILER_PLUGIN"
# NCCL copies the name into a buffer of 255 bytes.
NAME_BYTES_MAX = 254
# The library that NCCL loads without the variable.
DEFAULT_PLUGIN = "libnccl-profiler.so"
SYSTEM_FOLDERS = (
    *("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"),
    *("/usr/local/lib", "/usr/local/cuda/lib64", "/usr/local/nccl/lib", "/opt/nccl/lib"),
)


def library() -> str | None:
    """The plugin's file, None where it was not built, as where its compilation failed."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_profiler.so")
    return path if os.path.exists(path) else None


def variables(environ) -> dict[str, str]:
    """What to add to the environment so that NCCL loads the plugin; {} where that would do nothing, or replace another."""
    path = library()
    if path is None or len(os.fsencode(path)) > NAME_BYTES_MAX or environ.get("GOODPUT_NCCL") == "0":
        return {}
    if VARIABLE in environ or find(DEFAULT_PLUGIN, environ) or not installed(environ):
        return {}
    return {VARIABLE: path}


def installed(environ) -> str | None:
    """NCCL's library: of PyTorch's or JAX's packages, or of the system; None if there is none."""
    return _of_packages() or find("libnccl.so*", environ)


def find(pattern: str, environ) -> str | None:
    """The first library of this name where the dynamic linker may look."""
    folders = [*environ.get("LD_LIBRARY_PATH", "").split(os.pathsep), *SYSTEM_FOLDERS]
    found = (path for folder in folders if folder for path in glob.glob(os.path.join(folder, pattern)))
    return next(found, None)


def _of_packages() -> str | None:
    """NCCL in a folder of packages: the wheel of NVIDIA, or a PyTorch that was built with it."""
    folders = dict.fromkeys([*sys.path, sysconfig.get_paths()["platlib"]])
    for folder in filter(None, folders):
        for pattern in ("nvidia/nccl/lib/libnccl.so*", "torch/lib/libtorch_cuda.so"):
            found = glob.glob(os.path.join(glob.escape(folder), pattern))
            if found:
                return found[0]
    return None
