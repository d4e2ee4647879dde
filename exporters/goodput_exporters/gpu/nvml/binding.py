"""Imports NVIDIA's binding without ctypes.util, which it uses on Windows alone: 2 MiB of the driver's process."""

import sys
from types import ModuleType
from typing import Any

_NAME = "ctypes.util"


def import_pynvml() -> Any:
    """The module. Raises ImportError where it is not installed."""
    is_hidden = sys.platform != "win32" and _NAME not in sys.modules
    if is_hidden:
        sys.modules[_NAME] = standin = ModuleType(_NAME)
        standin.find_library = lambda name: None  # pyright: ignore[reportAttributeAccessIssue]
    try:
        import pynvml
    finally:
        if is_hidden:
            del sys.modules[_NAME]
    return pynvml
