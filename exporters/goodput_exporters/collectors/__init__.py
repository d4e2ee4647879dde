"""Collectors: one source of series per folder, found here by its `collector.py`.

A module that cannot be imported becomes a collector that fails, so that it shows up as a series.
"""

from __future__ import annotations

import importlib
import pkgutil

from goodput_exporters.collector import CollectorError, Settings


def discover() -> list[type]:
    """The collector class of each package in this folder, by name."""
    return [_load(name) for name in sorted(info.name for info in pkgutil.iter_modules(__path__))]


def _load(name: str) -> type:
    problem = "no class with a name and collect()"
    try:
        module = importlib.import_module(f"{__name__}.{name}.collector")
        for value in vars(module).values():
            is_local = isinstance(value, type) and value.__module__ == module.__name__
            if is_local and isinstance(getattr(value, "name", None), str) and hasattr(value, "collect"):
                return value
    except Exception as error:
        problem = str(error)
    return type(
        "Failing", (_Failing,), {"name": name, "problem": f"collectors/{name}/collector.py: {problem}"}
    )


class _Failing:
    problem = ""

    def __init__(self, settings: Settings):
        pass

    def collect(self, families) -> None:
        raise CollectorError(self.problem)
