"""What was said of this process besides who it is, by the user and by what was found out, in any order.

In: fields of `goodput.start`, and of `Session.tell`, at any time. Out: the fields that hold. What the user said holds
over what was found out; of the user's calls the first that says a field holds, of what was found out the last. It
opens no page and knows no identity.

    told = Told(); told.found({"dtype": "bf16"}, print); told.said({"dtype": "fp8"}, print); told.fields()    # fp8
"""

from __future__ import annotations

from goodput.sdk.startup.resolve_identity import told_of


class Told:
    """Valid fields alone; a wrong value is said through `say` and is as if it had been left out."""

    def __init__(self):
        self._said: dict = {}
        self._found: dict = {}

    def said(self, fields: dict, say) -> None:
        """The user gave these to `start`."""
        self._said = {**told_of(fields, say), **self._said}

    def found(self, fields: dict, say) -> None:
        """These were found out."""
        self._found = {**self._found, **told_of(fields, say)}

    def begin(self) -> None:
        """The user starts anew: what an earlier start was told is over."""
        self._said = {}

    def fields(self, world_size: int) -> dict:
        """What holds, for a rank in a world of this size, which can be found to be larger but not smaller."""
        held = {**self._found, **self._said}
        held["world_size"] = max(self._said.get("world_size") or self._found.get("world_size", 1), world_size)
        return held
