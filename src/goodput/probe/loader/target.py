"""Finds what the user names as `module:function`."""

from __future__ import annotations

import importlib
import os
import sys


class TargetError(Exception):
    """The target cannot be used; the message says which and why."""


def resolve(name: str):
    """The object called `module:attribute`, the module imported as from the current folder.

    Raises TargetError for a bad name, or if the import fails.
    """
    module, colon, attribute = name.partition(":")
    if not colon or not module or not attribute:
        raise TargetError(f"{name!r} is not module:function, such as train:make_loader")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = importlib.import_module(module)
    except (Exception, SystemExit) as error:
        raise TargetError(f"importing {module} failed: {_why(error)}") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise TargetError(f"{module} has no {attribute}")
        found = getattr(found, part)
    return found


def _why(error: BaseException) -> str:
    """A script that trains or parses the command's own arguments where it is imported ends it."""
    if isinstance(error, SystemExit):
        return (
            f'it ended the process (status {error.code}); put what it runs under `if __name__ == "__main__":`'
        )
    return f"{type(error).__name__}: {error}"


def loader_of(name: str):
    """The DataLoader that `module:function` returns, or is. Raises TargetError."""
    from torch.utils.data import DataLoader

    found = resolve(name)
    if not isinstance(found, DataLoader) and callable(found):
        try:
            found = found()
        except (Exception, SystemExit) as error:
            raise TargetError(f"{name}() failed: {_why(error)}") from error
    if not isinstance(found, DataLoader):
        raise TargetError(f"{name} gives a {type(found).__name__}, not a torch.utils.data.DataLoader")
    return found


def copy_of(name: str):
    """The function that copies a batch to the device. Raises TargetError."""
    found = resolve(name)
    if not callable(found):
        raise TargetError(f"{name} is no function")
    return found
