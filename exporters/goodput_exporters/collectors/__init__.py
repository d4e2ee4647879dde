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
    try:
        module = importlib.import_module(f"{__name__}.{name}.collector")
        for value in vars(module).values():
            if isinstance(value, type) and value.__module__ == module.__name__ and _is_collector(value):
                return value
        problem = f"collectors/{name}/collector.py has no class with a name and collect()"
    except Exception as error:
        problem = f"collectors/{name}/collector.py: {error}"
    return _failing(name, problem)


def _is_collector(value: type) -> bool:
    return isinstance(getattr(value, "name", None), str) and callable(getattr(value, "collect", None))


def _failing(collector_name: str, problem: str) -> type:
    class Failing:
        name = collector_name

        def __init__(self, settings: Settings):
            pass

        def collect(self, families) -> None:
            raise CollectorError(problem)

    return Failing
