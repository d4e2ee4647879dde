"""Whether optional packages are installed, found without importing them.

Each process of a test run imports all modules of tests, of which it runs a few; PyTorch alone takes 1 to 3 s of CPU time.

    need("torch")  # at the top of a module: skips all its tests where PyTorch is not installed; in a test, that test
"""

from __future__ import annotations

import importlib
import importlib.util

import pytest


def need(*modules: str) -> None:
    """Skip the test, or the module of tests, that calls this unless these modules are installed."""
    for name in modules:
        if not is_installed(name):
            pytest.skip(f"not installed: {name}", allow_module_level=True)


def is_installed(name: str) -> bool:
    """Imports the packages that a submodule is in, but not the module itself."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False
