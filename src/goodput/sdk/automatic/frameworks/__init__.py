"""The patches: one file per part of a framework that is wrapped.

`apply_all(auto)` applies each patch once its module is imported, now or later. A patch has `MODULE`, the module it
waits for (`ALIAS`, a second one), `RELIES_ON`, the upstream behaviour it relies on, and `apply(module, auto)`. A
patch that fails is reported once and leaves its framework unchanged; the others still apply.
"""

from __future__ import annotations

import importlib
import os

from goodput.user_exceptions import reraise_from_handler


def found() -> list:
    """The patch modules of this folder and of `torch/`."""
    return [importlib.import_module(f"{__name__}.{name}") for name in (*_names(""), *_names("torch"))]


def _names(package: str) -> list[str]:
    # Not pkgutil, which costs more to import than all of them.
    files = sorted(os.listdir(os.path.join(__path__[0], package)))
    prefix = f"{package}." if package else ""
    return [prefix + file[:-3] for file in files if file.endswith(".py") and file[0] != "_"]


def apply_all(auto, import_hook) -> None:
    """Apply each patch when its module is imported; those of torch before those of its submodules, which use them."""
    for patch in sorted(found(), key=lambda patch: patch.MODULE):
        for name in filter(None, (patch.MODULE, getattr(patch, "ALIAS", None))):
            import_hook.on_import(name, _safely(patch, auto))


def _safely(patch, auto):
    def apply(module) -> None:
        try:
            patch.apply(module, auto)
        except Exception as error:
            reraise_from_handler(error)
            # It may be the patch that detects a compiler.
            auto.before_compilation()
            name = patch.__name__.rpartition(".")[2]
            auto.session.warn(f"automatic: {name} is not measured here: {type(error).__name__}: {error}")

    return apply
