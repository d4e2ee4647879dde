"""The pipeline that the ranks of an attempt form; the core compares its stages (pipeline.c)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from goodput.account.attempts import Attempt


class Pipeline(NamedTuple):
    """`microbatches` is None where ranks do not declare it, or declare different numbers."""

    stages: int
    microbatches: int | None


def pipeline_of(attempts: Iterable[Attempt]) -> Pipeline | None:
    """The pipeline that these attempts form: all declare a stage, and there are at least two."""
    stages, counts = set(), set()
    for attempt in attempts:
        if attempt.stage is None:
            return None
        stages.add(attempt.stage)
        counts.add(attempt.microbatches)
    if len(stages) < 2:
        return None
    count = counts.pop() if len(counts) == 1 else None
    return Pipeline(1 + max(stages), count if count and count > 0 else None)
