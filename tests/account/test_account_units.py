"""Words of the place: an account of processes without a GPU is not one of GPU-seconds."""

import pytest
from support.account.account_history import Process, run_of

from goodput.account import compute, document
from goodput.account.collectives.operation_sums import sums_of
from goodput.account.text import render
from goodput.causes import explain
from goodput.rank_page.collective_records import OperationRow
from goodput.sdk.reports.local_accounts import is_without_gpu


def text_of(device: str, without_gpu: bool) -> str:
    run = run_of(Process(0, device=device).steps(4, forward=1).finished())
    run.is_without_gpu = without_gpu
    return render(document(compute(run, 10 * 10**9)), full=True)


@pytest.mark.parametrize(
    ("device", "without_gpu", "unit"),
    [
        ("", False, "GPU"), ("", True, "process"), ("NVIDIA H100 80GB HBM3", True, "GPU"),
        ("AMD EPYC 7B13, 8 threads", False, "process"),
    ],
)  # fmt: skip
def test_unit_follows_the_device(device, without_gpu, unit):
    text = text_of(device, without_gpu)
    other = {"GPU": "process-s", "process": "GPU-s"}[unit]
    assert f"{unit}-seconds" in text and other not in text
    assert ("host clock" in " ".join(text.split())) == (unit == "GPU"), (
        "there is no device with a clock of its own"
    )


@pytest.mark.parametrize("device", ["nvidia0", "nvidiactl", "kfd", "dxg", "accel0", "vfio/3"])
def test_a_device_file_means_an_accelerator(tmp_path, device):
    assert is_without_gpu(str(tmp_path))
    path = tmp_path / device
    path.parent.mkdir(exist_ok=True)
    path.touch()
    assert not is_without_gpu(str(tmp_path))


def test_compute_is_divided_into_phases():
    """Steps of 6 s compute; the first step, which may compile, does not count."""
    run = run_of(Process(0).steps(5, loader=1, forward=2, backward=3, optimizer=1).finished())
    found = document(compute(run, 10**12))
    assert [(one["phase"], round(one["share"], 9)) for one in found["phases"]] == [
        ("backward", round(3 / 6, 9)), ("forward", round(2 / 6, 9)), ("optimizer", round(1 / 6, 9)),
    ]  # fmt: skip
    assert "compute in steps: backward 50.0 %, forward 33.3 %, optimizer 16.7 %" in render(found, full=True)


def test_evaluation_before_the_first_step_is_said():
    """3 s of 4 s before the first step are evaluation; the evaluation after it is a state of its own."""
    process = (
        Process(0).between(evaluation=3, none=1).steps(3, forward=1).between(evaluation=2).steps(1, forward=1)
    )
    run = run_of(process.finished())
    run.is_of_pages = True
    found = document(compute(run, 10**12))
    assert (found["states"]["startup"], found["states"]["evaluation"]) == (4.0, 2.0)
    assert found["startup_evaluation_gpu_seconds"] == 3.0
    assert "3.00 GPU-seconds of it are evaluation before the first step" in render(found, full=True)


def test_view_of_one_rank_of_two_says_so():
    """How much of its communication is waiting for the other one cannot be known, and is not said."""
    one = Process(0, world_size=2)
    run = run_of(one.steps(20, forward=1, communication=1).finished())
    row = OperationRow("default_pg", "all_reduce", 20, 20 << 19, 20 * 10**9, 0, 0)
    next(iter(run.attempts.values())).collectives = sums_of([row])
    run.only_ranks = (0,)
    alone = document(account := compute(run, 100 * 10**9), explain(account))
    text = " ".join(render(alone, full=True).split())
    assert alone["ranks_elsewhere"] == 1
    assert "covers rank 0 alone, of 2; waiting for the others counts as communication" in text
    assert "may be waiting for a slower one" in text and "waiting for the last rank" not in text
    run.only_ranks = None
    assert document(compute(run, 100 * 10**9))["ranks_elsewhere"] == 0


SLOW_STATES = {
    "loader": {"loader": 5, "forward": 1},
    "communication": {"communication": 5, "forward": 1},
    "rollout": {"rollout": 5, "forward": 1},
}


def advice_of(phases: dict[str, dict], on_cpu: bool) -> str:
    """All advice of a run of a rank for each of these, by name, with and without one that is slow in its compute."""
    text = ""
    for name, spent in phases.items():
        decode = {"workers": 4, "wait_ns": 9, "wait_decode_ns": 9}
        processes = [Process(rank, device="" if on_cpu else "H100") for rank in range(4)]
        for process in processes:
            process.steps(40, **spent)
            process.finished()
        run = run_of(*processes)
        run.is_without_gpu = on_cpu
        for attempt in run.attempts.values():
            attempt.loader = decode if name == "loader" else {}
        text += "".join(cause["advice"] for cause in explain(compute(run, 10**12)))
    return text


def test_advice_names_no_gpu_where_there_is_none():
    assert "on the GPU" in advice_of(SLOW_STATES, on_cpu=False)
    said = advice_of(SLOW_STATES, on_cpu=True)
    assert "a faster decoder" in said and "bf16" in said and "inference engine" in said
    assert "GPU" not in said


@pytest.mark.parametrize(("device", "degraded"), [("H100", True), ("AMD EPYC 7B13, 8 threads", False)])
def test_advice_on_a_slow_rank_fits_its_place(device, degraded):
    processes = [
        Process(rank, device=device).steps(100, forward=3 if rank == 2 else 1, communication=0 if rank == 2 else 2)
        for rank in range(4)
    ]  # fmt: skip
    (found,) = (
        cause
        for cause in explain(compute(run_of(*[one.finished() for one in processes]), 10**12))
        if cause["state"] == "straggler"
    )
    assert "waiting for rank 2" in found["advice"] and "its compute is slow" in found["advice"]
    assert ("GPU" in found["advice"]) == degraded
