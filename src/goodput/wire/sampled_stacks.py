"""Where a process was while it was in no phase, by samples of its stacks."""

from __future__ import annotations

from typing import NamedTuple, Protocol

PLACES_MAX, PLACE_CHARACTERS_MAX, SAMPLES_MAX = 16, 160, 1 << 40


class SampledStacks(NamedTuple):
    """Samples of one process: by place ("FILE:FUNCTION, line N"), in all, and why there are none."""

    places: dict[str, int]
    samples: int
    reason: str


NO_STACKS = SampledStacks({}, 0, "")


class _Sampled(Protocol):
    @property
    def places(self) -> dict[str, int]: ...
    @property
    def samples(self) -> int: ...
    @property
    def reason(self) -> str: ...


def stacks_problem(stacks: _Sampled) -> str:
    """Why samples that were pushed are refused, "" if they are not."""
    texts, counts = (*stacks.places, stacks.reason), stacks.places.values()
    if len(stacks.places) > PLACES_MAX or any(len(text) > PLACE_CHARACTERS_MAX for text in texts):
        return f"{len(stacks.places)} places of stacks, {PLACES_MAX} at most, or a long text"
    if not all(text.isprintable() for text in texts):
        return "a place of stacks is not printable"
    if not all(0 <= count < 1 << 62 for count in (*counts, stacks.samples)) or sum(counts) > stacks.samples:
        return "a number of samples is negative, too large, or less than that of its places"
    return ""
