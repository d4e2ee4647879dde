"""Histograms of a run log's steps and phases."""

import json

from goodput.runlog.step_histograms import INTERVALS_MAX, step_histograms


def step(time, seconds, phases, **more) -> bytes:
    return json.dumps({"kind": "step", "time": time, "seconds": seconds, "phases": phases, **more}).encode()


def test_samples_are_steps_and_phases_by_minute():
    lines = [
        b'{"kind":"run","time":100.0,"run":"r"}',
        b'{"kind":"phase","time":118.0,"phase":"restore","seconds":3.0}',
        step(119.5, 1.5, {"forward": 1.0, "my phase, step": 0.25}),
        step(120.5, 1.0, {"forward": 0.5}),
        step(124.5, 4.0, {"forward": 2.0}, count=2),
        b'{"kind":"beat","time":125.0}',
    ]
    found = {(start, end, tag): (h.count, h.sum_ns / 1e9) for start, end, tag, h in step_histograms(lines)}
    assert found == {
        (60, 120, "restore"): (1, 3.0),
        (60, 120, "step"): (1, 1.5),
        (60, 120, "forward"): (1, 1.0),
        (60, 120, "my_phase_step"): (1, 0.25),
        (120, 180, "step"): (1, 1.0),
        (120, 180, "forward"): (1, 0.5),
    }


def test_long_run_has_longer_intervals():
    minutes = 3 * INTERVALS_MAX
    found = step_histograms(step(60.0 * i, 1.0, {}) for i in range(minutes))
    assert {end - start for start, end, _, _ in found} == {240} and len(found) <= INTERVALS_MAX
    assert sum(histogram.count for *_, histogram in found) == minutes


def test_user_phase_named_step_is_separate():
    (phase, whole) = step_histograms([step(5.0, 2.0, {"step": 1.0})])
    assert (phase[2], phase[3].sum_ns, whole[2], whole[3].sum_ns) == ("phase_step", 10**9, "step", 2 * 10**9)
