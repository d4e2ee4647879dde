"""What measuring itself costs on this machine, so that a page can report it."""

from __future__ import annotations

import time

from goodput.rank_page import page
from goodput.sdk.recorder.phase import Phase
from goodput.sdk.recorder.recorder import Recorder

OPERATIONS = 16
ROUNDS = 6  # the first one warms up caches


def calibrate(recorder: Recorder) -> None:
    """Set the recorder's cost of a phase, a step and a clock reading, measured on a scratch recorder.

    Takes about 0.3 ms. The minimum over some rounds is used, since any round can be preempted.
    """
    trial = Recorder()
    trial.open(page.private_words(), time.perf_counter_ns())
    phase = Phase(trial, "forward", 3)

    def phases() -> None:
        for _ in range(OPERATIONS):
            with phase:
                pass

    def steps() -> None:
        for _ in range(OPERATIONS):
            now = time.perf_counter_ns()
            trial.end_gap(now)
            trial.begin_step(now, None, 0)
            trial.end_step(now)

    least = [1 << 60] * 3
    for _ in range(ROUNDS):
        for i, (work, measuring) in enumerate(((phases, True), (phases, False), (steps, False))):
            trial.costs.measure(measuring)
            began = time.perf_counter_ns()
            work()
            least[i] = min(least[i], (time.perf_counter_ns() - began) // OPERATIONS)
    measured_ns, phase_ns, step_ns = least
    recorder.costs.calibrate(phase_ns, step_ns, max(measured_ns - phase_ns, 0) // 2)
