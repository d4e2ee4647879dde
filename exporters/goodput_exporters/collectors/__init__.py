"""Collectors: one source of series per folder, found here by its `collector.py`.

Adding one is a new folder with a `collector.py`; one that cannot be imported becomes a collector that fails, so it
is seen as a series.

    for Class in discover():
        Class(settings).collect(families)
"""

from __future__ import annotations

import importlib
import pkgutil

from goodput_exporters.collector import CollectorError, Settings


def discover() -> list[type]:
    """The collector class of each package in this folder, by name."""
    return [_load(info.name) for info in sorted(pkgutil.iter_modules(__path__), key=lambda info: info.name)]


def _load(module_name: str) -> type:
    try:
        module = importlib.import_module(f"{__name__}.{module_name}.collector")
        for value in vars(module).values():
            if isinstance(value, type) and value.__module__ == module.__name__ and _is_collector(value):
                return value
        problem = f"collectors/{module_name}/collector.py has no class with a name and collect()"
    except Exception as error:
        problem = f"collectors/{module_name}/collector.py: {error}"
    return _broken(module_name, problem)


def _is_collector(value: type) -> bool:
    return isinstance(getattr(value, "name", None), str) and callable(getattr(value, "collect", None))


def _broken(module_name: str, problem: str) -> type:
    class Broken:
        name = module_name

        def __init__(self, settings: Settings):
            pass

        def collect(self, families) -> None:
            raise CollectorError(problem)

    return Broken
