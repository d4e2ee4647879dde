"""Where a process was while it was in no phase, by samples of its stacks."""

from __future__ import annotations

from typing import NamedTuple

PLACES_MAX, SAMPLES_MAX = 16, 1 << 40


class SampledStacks(NamedTuple):
    """Samples of one process: by place ("FILE:FUNCTION, line N"), in all, and why there are none."""

    places: dict[str, int]
    samples: int
    reason: str


NO_STACKS = SampledStacks({}, 0, "")
