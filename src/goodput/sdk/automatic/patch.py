"""Replaces attributes of other people's modules and classes, and restores all of them with one call.

patches = Patches()

@patches.wrap("train", torch.nn.Module)
def train(self, mode=True): ...

patches.restore()
"""

from __future__ import annotations

import functools
import sys

from goodput.user_exceptions import reraise_from_handler

_INHERITED = object()


class Patches:
    """The attributes that were replaced, in order, and other things to undo."""

    def __init__(self):
        self._done: list[tuple] = []
        self._original_of: dict[int, tuple] = {}

    def wrap(self, name: str, *owners):
        """Decorator: give a function the name and signature of `owner.name`, and replace that on each owner."""

        def decorate(function):
            functools.update_wrapper(function, getattr(owners[0], name))
            for owner in owners:
                self.replace(owner, name, function)
            return function

        return decorate

    def replace(self, owner, name: str, new):
        """Set `owner.name`; returns what it was. Raises AttributeError where the owner has no such attribute."""
        original = getattr(owner, name)
        # The raw entry: a staticmethod or a property must be restored as such, an inherited attribute deleted.
        raw = vars(owner).get(name, _INHERITED)
        setattr(owner, name, new)
        self._done.append((owner, name, raw, vars(owner).get(name)))
        self._original_of[id(new)] = (new, original)
        return original

    def exchange(self, owner, name: str, old, new) -> None:
        """Put another replacement in the place of the old one, where that still stands."""
        if vars(owner).get(name) is not old:
            return
        setattr(owner, name, new)
        self._original_of[id(new)] = (new, self._original_of[id(old)][1])
        self._done = [(*done[:3], new) if done[3] is old else done for done in self._done]

    def undo(self, function) -> None:
        """Call this function, which takes no argument, at restore."""
        self._done.append((function, None, None, None))

    def restore(self) -> None:
        """Restore everything, the last first, except what other code has replaced since.

        A module that has imported a replacement by name gets the original, also in a table of its own.
        """
        while self._done:
            owner, name, raw, ours = self._done.pop()
            try:
                if name is None:
                    owner()
                elif vars(owner).get(name) is not ours:
                    continue
                elif raw is _INHERITED:
                    delattr(owner, name)
                else:
                    setattr(owner, name, raw)
            except Exception as error:
                reraise_from_handler(error)
                continue  # An owner that is gone or refuses; the others are still restored.
        for module in list(sys.modules.values()):
            try:
                values = vars(module)
                for table in (values, *(value for value in list(values.values()) if type(value) is dict)):
                    self._replace_values(table)
            except Exception as error:
                reraise_from_handler(error)
                continue  # An object in place of a module may raise at any access.
        self._original_of.clear()

    def _replace_values(self, table: dict) -> None:
        # Half a million values in a process with PyTorch, of which next to none are ours.
        if self._original_of.keys().isdisjoint(map(id, list(table.values()))):
            return
        for name, value in list(table.items()):
            ours, original = self._original_of.get(id(value), (None, None))
            if ours is not None:
                table[name] = original
