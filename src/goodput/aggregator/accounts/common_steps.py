"""The steps that all ranks of a group have completed, so that ranks are compared over the same steps.

An account ends at one moment, at which some ranks are in a step of which the row is known already and counts in part,
and others, whose clocks or reports are a little behind, in the step before. In a window of few steps one long step more
is enough to make a rank slow. So the rows after the last step that all have completed are folded last, and each
rank's sums before them are kept as the ones to be compared. Cost: 5 us per rank and account.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from goodput.account.facts import Bound, Facts, Key
from goodput.columns.engine import ColumnEngine
from goodput.wire.step_blocks import STEP

# Rows of an attempt that wait for other ranks. One that makes no steps any more must not keep all others' in memory.
WAITING_ROWS_MAX = 64
# Rows may stand for several steps, other ones for each rank. Then a step is looked for at which all have one.
TRIES = 4


def is_going(bound: Bound, facts: Facts) -> bool:
    """Whether an attempt may make more steps and its reports reach the end of the account."""
    return bound.running and bound.end_ns >= facts.end_ns


def completed_by_all(engine: ColumnEngine, parts: Mapping[Key, np.ndarray]) -> dict[Key, int]:
    """How many of these rows, which are to be folded next, each attempt may fold: those up to its group's common step."""
    counts = {key: values.shape[1] for key, values in parts.items()}
    facts, table = engine.facts, engine.folds
    for members in engine.groups.members.values():
        going = [key for key in members if is_going(facts.bounds[key], facts)]
        if len(going) < 2:
            continue
        # A rank may repeat steps.
        steps = {key: np.maximum.accumulate(parts[key][STEP]) for key in going if counts.get(key)}
        tops = dict(zip(going, table.top_step[table.rows(going)].tolist(), strict=True))
        for key, count in _up_to(_common_step(steps, tops), steps).items():
            counts[key] = max(count, counts[key] - WAITING_ROWS_MAX)
    return counts


def _common_step(steps: Mapping[Key, np.ndarray], tops: Mapping[Key, int]) -> int:
    """The last step at which all of these attempts have a row; `tops` are their last ones before these."""
    common = min(int(steps[key][-1]) if key in steps else top for key, top in tops.items())
    for _ in range(TRIES):
        counts = _up_to(common, steps)
        last = min(int(steps[key][counts[key] - 1]) if counts.get(key) else top for key, top in tops.items())
        if last >= common:
            break
        common = last
    return common


def _up_to(step: int, steps: Mapping[Key, np.ndarray]) -> dict[Key, int]:
    return {key: int(own.searchsorted(step, side="right")) for key, own in steps.items()}
