"""goodput: was every second of every GPU useful work, and if not, why?

    import goodput

    goodput.start(run="my-run")                       # optional: rank and world size come from the launcher
    for batch in goodput.steps(loader):               # times the wait for the loader, bounds the step
        with goodput.phase("forward"):
            loss = model(batch)
        with goodput.phase("backward"):
            loss.backward()
        with goodput.phase("optimizer"):
            optimizer.step()
    print(goodput.report())

Standard library only. Calls write to a memory-mapped page and never raise, wait, start a thread or open a
socket. `GOODPUT_DISABLE=1` makes every one of them do nothing.
"""

from __future__ import annotations

import atexit as _atexit
import os as _os

# None of them later: a signal handler that came between would find a module half imported.
from goodput.sdk.recorder.checkpoints import begin as _begin_checkpoint
from goodput.sdk.recorder.steps import Step as _Step
from goodput.sdk.recorder.steps import steps as _steps
from goodput.sdk.recorder.steps import timed as _timed
from goodput.sdk.reports.report import report as _report
from goodput.sdk.reports.window import Windows as _Windows
from goodput.sdk.startup.session import Session as _Session

__version__ = "0.1.0"
__all__ = [
    "checkpoint",
    "loader",
    "mark",
    "phase",
    "report",
    "resumed",
    "start",
    "step",
    "steps",
    "stop",
    "window",
]

_session = _Session()
_phases = _session.phases.by_name
_windows = _Windows(_session)
_os.register_at_fork(after_in_child=_session.after_fork)
_os.register_at_fork(after_in_child=_windows.after_fork)
_atexit.register(_session.at_exit)


def start(
    run: str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    *,
    attempt: int | None = None,
    device: str | None = None,
    device_uuid: str | None = None,
    devices: int | None = None,
    group: str | None = None,
    stage: int | None = None,
    tensor: int | None = None,
    microbatches: int | None = None,
    dtype: str | None = None,
    flops_per_step: float | None = None,
    hardware_flops_per_step: float | None = None,
    peak_flops_per_second: float | None = None,
    ideal_samples_per_second: float | None = None,
    gpu_hour_cost: float | None = None,
    gpu_power_watts: float | None = None,
    submit_time: float | None = None,
    directory: str | None = None,
    **others,
) -> None:
    """Begin measuring this process.

    What is left out is read from the variables of torchrun, Slurm, MPI or Kubernetes.

    Args:
        run: name of the training run, the same on all ranks and over its restarts.
        rank, world_size: of this process among those of the run.
        attempt: 1 for the first start of the run, then 2, 3 …
        device, device_uuid, devices: the accelerator's name and id, and how many this rank drives.
        group: ranks with the same text meet in collectives; one group when left out.
        stage, tensor: pipeline stage and tensor-parallel rank.
        microbatches: per step, for the pipeline bubble that cannot be avoided.
        dtype: of the matrix products, such as "bf16", or shares of the FLOPs, such as "bf16=0.8,fp8=0.2";
            with `device` it gives the peak where that is known.
        flops_per_step: model FLOPs of one step of this rank, without recomputation.
        hardware_flops_per_step: the same with recomputation, for HFU.
        peak_flops_per_second: dense peak of this rank's devices together.
        ideal_samples_per_second: of this rank, were nothing in the way.
        gpu_hour_cost: price of one GPU-hour, in dollars.
        gpu_power_watts: mean power of one device, for energy by state.
        submit_time: unix seconds at which the scheduler was asked; the wait since then is `queue`.
        directory: where rank pages lie; default `$GOODPUT_DIR`, else /dev/shm/goodput.

    Without a call, the first step or phase starts. A call after that still says who this process is, until its
    first step is done. Of several calls the first holds; a later one may add what none has said.
    """
    given = {name: value for name, value in locals().items() if value is not None and name != "others"}
    for name in others:
        _session.warn(f"start has no argument {str(name)[:40]!r}; it is ignored")
    _session.start(**given)


def phase(name: str, state: str | None = None):
    """The phase `name`, as a context manager or a decorator.

    Built in are loader, h2d, forward, backward, optimizer, communication, checkpoint, restore, evaluation and
    compile. Up to 16 more are yours; `state` says what their time is in the account: productive, loader, h2d,
    communication, checkpoint, restore, evaluation, compile, startup or unattributed (the default).
    """
    try:
        return _phases[name]
    except Exception:
        return _session.phases.define(name, state)


def steps(iterable, samples: int = 0):
    """Iterate, timing the wait for each item as `loader`; each item's turn of the loop is one step.

    `samples` is how many samples (or tokens) a step handles, for throughput.
    """
    _by_hand()
    return _steps(_session.recorder, phase("loader"), iterable, _session.samples(samples))


def loader(iterable):
    """Iterate, timing the wait for each item as `loader`, without bounding steps: for an iterable beside goodput.auto."""
    return _timed(_session, phase("loader"), iterable)


def step(index: int | None = None, samples: int = 0):
    """One step as a context manager. `index` defaults to one more than the last; it cannot go back."""
    _by_hand()
    return _Step(_session.recorder, index, _session.samples(samples))


def _by_hand() -> None:
    """Who bounds steps by hand does it alone, also beside goodput.auto."""
    if _session.automatic is not None:
        _session.automatic.by_hand()


def checkpoint(step: int | None = None, wait: bool = True):
    """A checkpoint of the work up to `step`, by default the running step, between steps the last one.

    As `with checkpoint(step):` it times the save and marks it committed at the end. As a plain statement it
    says that the checkpoint is saved. With `wait=False` it is committed when `.commit()` is called.
    """
    return _begin_checkpoint(_session, phase("checkpoint"), step, wait)


def resumed(step: int) -> None:
    """This attempt goes on after `step`, the last step whose work was restored; -1 when from scratch."""
    _session.resume(step)


def mark(text: str) -> None:
    """Note a moment, with up to 64 bytes of text, for the timeline."""
    _session.mark(text)


def stop(reason: str = "finished") -> None:
    """End the measurement before the process ends; `reason` is finished or failed. `start` may follow."""
    _session.stop(reason)


def report():
    """This process's own account so far: print it, or read its `.account` (a dictionary).

    Returns a goodput.sdk.reports.report.Report; an empty one where nothing is measured.
    """
    return _report(_session)


def window(seconds: float = 60):
    """The last `seconds` of this process, cheaply enough to log at every step.

        now = goodput.window(seconds=60)
        now.steps_per_second, now.goodput, now.goodput_so_far, now.step.p99_seconds, now.phases["loader"].share
        wandb.log(now.scalars())

    Returns a goodput.sdk.reports.window.Window; one without steps where nothing is measured.
    """
    return _windows.window(seconds)
