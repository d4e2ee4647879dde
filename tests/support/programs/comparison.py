"""What a program's stopwatch says of each state, by the definitions of docs/definitions.md."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import median

# Of the wall time, by which a state of the account may differ from the stopwatch.
TOLERANCE_SHARE = 0.01
# The states that sections of other names are.
SECTION_STATES = {"compute": "productive", "other": "unattributed"}


@dataclass
class Measured:
    """One rank's stopwatch."""

    before: int
    steps: list[dict[str, int]]
    between: dict[str, int]
    wall: int
    weights: str
    outputs: list[str]

    @classmethod
    def read(cls, path: Path) -> Measured:
        return cls(**json.loads(path.read_text()))

    def states(self) -> dict[str, int]:
        """Nanoseconds per state."""
        sections = Counter(self.between)
        for step in self.steps:
            sections.update(step)
        found = {SECTION_STATES.get(section, section): ns for section, ns in sections.items()}
        found["startup"] = found.get("startup", 0) + self.before
        excess = self.first_step_excess()
        found["compile"] = found.get("compile", 0) + excess
        found["productive"] -= excess
        return found

    def first_step_excess(self) -> int:
        """How much longer the first step is than the median of the others, as far as its work explains it."""
        lengths = [sum(step.values()) for step in self.steps]
        work = [step.get("compute", 0) + step.get("other", 0) for step in self.steps]
        longer = min(values[0] - int(median(values[1:])) for values in (lengths, work))
        return max(longer, 0)


def differences(states: dict[str, int], measured: Measured) -> dict[str, float]:
    """Seconds by which states differ from the stopwatch by more than the tolerance.

    The stopwatch ends before the interpreter shuts down; that time may be in any state.
    """
    expected, wall = measured.states(), sum(states.values())
    found = {state: states.get(state, 0) - expected.get(state, 0) for state in {*states, *expected}}
    limit, shutdown = TOLERANCE_SHARE * wall, max(wall - measured.wall, 0)
    return {state: ns / 1e9 for state, ns in found.items() if not -limit <= ns <= limit + shutdown}
