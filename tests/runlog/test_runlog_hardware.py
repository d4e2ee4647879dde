"""GPU samples in a log's beats and ends: the newest line counts, and a wrong sample is left out of its line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from goodput.account import document
from goodput.runlog import replay

HEAD = '{"kind":"run","time":0,"run":"r1"}\n{"kind":"attempt","time":0,"rank":0,"attempt":1}\n'


def account_of(path: Path, *last: dict, window=None):
    """8 steps of 0.5 s loader and 1.5 s compute, then these lines."""
    phases = '"phases":{"loader":0.5,"forward":1.5}'
    steps = "".join(
        f'{{"kind":"step","time":{2 * n + 2},"step":{n},"seconds":2,{phases}}}\n' for n in range(8)
    )
    path.write_text(HEAD + steps + "".join(f"{json.dumps(line)}\n" for line in last))
    (found,) = replay(str(path), window=window)
    return document(found.account), [text for _, text in found.problems.listed], found.problems.ignored


END = {"kind": "end", "time": 16}
SAMPLES = {"gpu_compute_seconds": 6.0, "gpu_idle_seconds": 3.0, "gpu_joules": 4000.5}


def test_newest_line_has_the_device_samples(tmp_path):
    early = {"kind": "beat", "time": 4, "gpu_compute_seconds": 5, "gpu_idle_seconds": 5}
    found, problems, ignored = account_of(tmp_path / "log", early, END | SAMPLES)
    # Of 12 s of compute 6 were sampled.
    assert (found["states"]["productive"], found["states"]["launch"]) == (9, 3)
    assert (found["basis"]["launch"], found["basis"]["energy"]) == ("estimated", "measured")
    assert found["energy"]["total"] == pytest.approx(4000.5)
    assert (problems, dict(ignored)) == ([], {})
    half, *_ = account_of(tmp_path / "log", END | SAMPLES, window=(0, 8 * 10**9))
    assert (half["states"]["productive"], half["states"]["launch"]) == (4.5, 1.5)
    assert half["energy"]["total"] == pytest.approx(4000.5 / 2)
    nothing, *_ = account_of(tmp_path / "log", END)
    assert nothing["basis"]["launch"] == nothing["basis"]["energy"] == "unknown"


@pytest.mark.parametrize(("wrong", "bound"), [(-1, ">= 0.0"), (1e300, "< 4611686018"), (-1e-9, ">= 0.0")])
def test_wrong_sample_is_left_out_of_its_line(tmp_path, wrong, bound):
    end = END | SAMPLES | {"reason": "failed", "gpu_idle_seconds": wrong}
    found, problems, _ = account_of(tmp_path / "log", end)
    (problem,) = problems
    assert problem.startswith("`gpu_idle_seconds` is ") and problem.endswith("; it is left out")
    assert f"want a number {bound}" in problem
    assert (found["status"], found["states"]["launch"]) == ("failed", 0)
    assert found["basis"]["launch"] == "estimated", "the GPU was sampled"
    assert found["energy"]["total"] == pytest.approx(4000.5)
