"""One file per thing that is patched: what it relies on upstream, and what it does there.

In: `apply_all(auto)`. Out: each patch applied once the module it names has been imported, now or later. A patch has
`MODULE`, the module that it waits for, `RELIES_ON`, the upstream behaviour that it relies on, and
`apply(module, auto)`. One that fails is said and leaves its framework as it was; the others go on.
"""

from __future__ import annotations

import importlib
import os


def found() -> list:
    """The patch modules: those of this folder, and PyTorch's in `torch/`."""
    return [importlib.import_module(f"{__name__}.{name}") for name in (*_names(""), *_names("torch"))]


def _names(package: str) -> list[str]:
    # Not pkgutil, which costs more to import than all of them.
    files = sorted(os.listdir(os.path.join(__path__[0], package)))
    prefix = f"{package}." if package else ""
    return [prefix + file[:-3] for file in files if file.endswith(".py") and file[0] != "_"]


def apply_all(auto, watch) -> None:
    """Apply each patch when its module is there; those of torch before those of its parts, which use them."""
    for patch in sorted(found(), key=lambda patch: patch.MODULE):
        watch.when(patch.MODULE, _safely(patch, auto))


def _safely(patch, auto):
    def apply(module) -> None:
        try:
            patch.apply(module, auto)
        except Exception as error:
            # It may be the one that tells of a compiler.
            auto.meet_compiler()
            name = patch.__name__.rpartition(".")[2]
            auto.session.warn(f"automatic: {name} is not measured here: {type(error).__name__}: {error}")

    return apply
