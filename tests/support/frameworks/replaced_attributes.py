"""What goodput.auto has put into PyTorch: in every module and class that is imported, whoever the patch was for.

before = attributes(); import goodput.auto; ...; goodput.auto.remove(); not_restored(before, owners()) == []
"""

import os
import sys
import types
from collections import OrderedDict


def owners() -> dict:
    """PyTorch's modules and classes, by id."""
    modules = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] == "torch"]
    # By its type: some names warn of their end at any access.
    classes = [v for module in modules for v in list(vars(module).values()) if issubclass(type(v), type)]
    return {id(owner): owner for owner in (*modules, *classes)}


def attributes() -> dict:
    return {key: dict(vars(owner)) for key, owner in owners().items()}


def ours() -> list[str]:
    """Where functions of goodput's can be reached, also in lists and tables."""
    found = set()
    for owner in owners().values():
        for name, value in list(vars(owner).items()):
            if any(map(_is_ours, _values_of(value))):
                found.add(f"{getattr(owner, '__name__', owner)}.{name}")
    return sorted(found)


def not_restored(before: dict, replaced: dict) -> list[str]:
    """Attributes of the owners in `replaced` that are not the objects that they were."""
    return [
        f"{getattr(owner, '__name__', owner)}.{name}"
        for key, owner in replaced.items()
        if key in before
        for name in {**before[key], **vars(owner)}
        if before[key].get(name) is not vars(owner).get(name)
    ]


def _values_of(value) -> list:
    if type(value) in (dict, OrderedDict):
        return [*value, *value.values()]
    if type(value) in (list, set, tuple):
        return [*value]
    return [value.__func__] if type(value) in (staticmethod, classmethod) else [value]


def _is_ours(value) -> bool:
    folder = f"{os.sep}goodput{os.sep}sdk{os.sep}"
    return type(value) is types.FunctionType and folder in value.__code__.co_filename
