"""What a program's stopwatch says of each state, by the definitions of docs/definitions.md."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

# Of the wall time, by which a state of the account may differ from the stopwatch.
TOLERANCE_SHARE = 0.01
# Of the wall time: a process whose threads waited no longer than this for a core got its cores.
QUIET_SHARE = 0.001
# The states that sections of other names are.
SECTION_STATES = {"compute": "productive", "forward": "productive", "other": "unattributed"}


# What an author times as one section where ranks wait for each other inside the backward pass.
EXCHANGE = ("communication", "straggler", "compile")


@dataclass
class Measured:
    """One rank's stopwatch."""

    began: int
    before: int
    steps: list[dict[str, int]]
    between: dict[str, int]
    unfinished: dict[str, int]
    wall: int
    core_wait: int
    weights: str
    outputs: list[str]

    @classmethod
    def read(cls, path: Path) -> Measured:
        return cls(**json.loads(path.read_text()))

    def states(self) -> Counter[str]:
        """Nanoseconds per state."""
        found = Counter(startup=self.before)
        for sections in (*self.steps, self.between, self.unfinished):
            for section, ns in sections.items():
                found[SECTION_STATES.get(section, section)] += ns
        excess = self.first_step_excess()
        found["compile"] += excess
        found["productive"] -= excess
        return found

    def first_step_excess(self) -> int:
        """How much longer the first step is than the median of the others, as far as its work explains it."""
        lengths = [sum(step.values()) for step in self.steps]
        work = [sum(step.get(each, 0) for each in SECTION_STATES) for step in self.steps]
        longer = min(values[0] - int(median(values[1:])) for values in (lengths, work))
        return max(longer, 0)


def restarted(killed: Measured, resumed: Measured, kept: int) -> Counter[str]:
    """Nanoseconds per state of a rank that was killed and then resumed after its first `kept` steps."""
    lost = sum(sum(step.values()) for step in killed.steps[kept:]) + sum(killed.unfinished.values())
    down = resumed.began - killed.began - killed.wall
    first = replace(killed, steps=killed.steps[:kept], unfinished={})
    return first.states() + resumed.states() + Counter(lost=lost, down=down)


def allowance_ns(core_wait: int, wall: int) -> int:
    """By how much two clocks may differ because of measured waits for a core, all in nanoseconds.

    `core_wait` is the time for which threads were ready to run and had no core, by the kernel's schedstat. A wait between
    two readings, one of each clock, is in different states of the two, so they may differ by all of it. If it is at most
    QUIET_SHARE of the wall time, the process got its cores, and nothing is allowed.
    """
    return core_wait if core_wait > QUIET_SHARE * wall else 0


def differences(
    states: dict[str, int], expected: dict[str, int], merged=(), core_wait: int = 0
) -> dict[str, float]:
    """Seconds by which states differ from the expected ones by more than the tolerance.

    On a quiet machine that is TOLERANCE_SHARE of the wall time, else that and `allowance_ns` of `core_wait`, the waits of
    the training threads. The states in `merged` count as productive. The stopwatch ends before the interpreter shuts
    down: that time, the wall time less all of the stopwatch's, may be in any state.
    """
    states, expected = _merge(states, merged), _merge(expected, merged)
    wall = sum(states.values())
    limit = TOLERANCE_SHARE * wall + allowance_ns(core_wait, wall)
    shutdown = max(wall - sum(expected.values()), 0)
    found = {state: states[state] - expected[state] for state in {*states, *expected}}
    return {state: ns / 1e9 for state, ns in found.items() if not -limit <= ns <= limit + shutdown}


def _merge(states: dict[str, int], merged) -> Counter[str]:
    found: Counter[str] = Counter()
    for state, ns in states.items():
        found["productive" if state in merged else state] += ns
    return found
