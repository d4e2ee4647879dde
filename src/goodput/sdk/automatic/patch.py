"""Attributes replaced in other people's modules, each remembered, all put back by one call.

In: an owner (a module or a class), a name and what shall stand there. Out: what stood there before. What was the
owner's own is set back; what the owner had inherited is deleted again. It does not know what the patches are for.

    patches = Patches()
    original = patches.replace(torch.autograd, "backward", timed)
    patches.restore()
"""

from __future__ import annotations

import sys

_INHERITED = object()


class Patches:
    """The attributes that were replaced, in order, and other things to undo."""

    def __init__(self):
        self._done: list[tuple] = []
        self._original_of: dict[int, tuple] = {}

    def replace(self, owner, name: str, new):
        """Set `owner.name`; returns what it was. Raises AttributeError where the owner has no such attribute."""
        original = getattr(owner, name)
        # The raw entry: a staticmethod or a property must come back as what it was.
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
        """Put everything back, the last first. What somebody else has replaced since then stays theirs.

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
            except Exception:
                continue  # An owner that went away or refuses; the others still go back.
        for module in list(sys.modules.values()):
            try:
                self._sweep(getattr(module, "__dict__", None))
            except Exception:
                continue  # Something else in a module's place may raise whatever it is asked.
        self._original_of.clear()

    def _sweep(self, values) -> None:
        if type(values) is dict:
            self._put_back(values)
            for value in list(values.values()):
                if type(value) is dict:
                    self._put_back(value)

    def _put_back(self, values: dict) -> None:
        for name, value in list(values.items()):
            ours, original = self._original_of.get(id(value), (None, None))
            if ours is not None:
                values[name] = original
