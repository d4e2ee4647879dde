"""Fields of a rank besides its identity: device, dtype, FLOPs, prices, a world size that grows.

They may arrive at any time, from `goodput.start` or from detection, in any order. What the user declares wins over
what is detected; of several user values the first wins, of several detected ones the last.

    fields = DeclaredFields()
    fields.detect({"dtype": "bf16"}, print)
    fields.declare({"dtype": "fp8"}, print)
    fields.values(world_size=1)["dtype"]    # "fp8"
"""

from __future__ import annotations

from goodput.sdk.startup.resolve_identity import valid_fields


class DeclaredFields:
    """Holds valid fields only; an invalid value is reported through `warn` and ignored."""

    def __init__(self):
        self._by_user: dict = {}
        self._detected: dict = {}

    def declare(self, fields: dict, warn) -> None:
        """Add what the user gave to `goodput.start`."""
        self._by_user = {**valid_fields(fields, warn), **self._by_user}

    def detect(self, fields: dict, warn) -> None:
        self._detected = {**self._detected, **valid_fields(fields, warn)}

    def forget_user(self) -> None:
        """The user starts anew after `stop`: values of earlier calls no longer hold."""
        self._by_user = {}

    def forget_training(self) -> None:
        """A training is over: the number of its steps is not that of the next one, which may be detected at any time."""
        self._detected.pop("total_steps", None)

    def values(self, world_size: int) -> dict:
        """The fields in effect for a rank of a world of at least this size."""
        values = {**self._detected, **self._by_user}
        values["world_size"] = max(values.get("world_size", 1), world_size)
        return values
