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

`import goodput.auto` measures a PyTorch training loop without any of these calls. Calls write to a memory-mapped file
and never raise, block, start a thread or open a socket; a phase costs about 0.3 us. `GOODPUT_DISABLE=1` turns them off.
"""

from __future__ import annotations

import atexit as _atexit
import os as _os

# Imported here and not on first use: a signal handler that runs in between would find a module half imported.
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
    "checkpoint_due",
    "loader",
    "mark",
    "phase",
    "progress",
    "report",
    "resumed",
    "start",
    "step",
    "steps",
    "stop",
    "window",
]


def _print_reports(session, has_steps: bool) -> None:
    # For `goodput run` alone, so it is loaded late.
    from goodput.sdk.reports.exit_report import print_reports

    print_reports(session, has_steps)


_session = _Session(print_reports=_print_reports)
_phases = _session.phases.by_name
_windows = _Windows(_session)
_checkpoint_due = None  # one of sdk.reports.checkpoint_due, from the first call on
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
    role: str | None = None,
    stage: int | None = None,
    tensor: int | None = None,
    microbatches: int | None = None,
    total_steps: int | None = None,
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
    """Start measuring this process. Optional: the first loader, process group, phase or step starts it, too.

    Run, rank, world size and attempt default to those of torchrun, Slurm, MPI or Kubernetes. They are fixed once
    measuring has started, so call `start` first where you give them; a later call with others is reported and ignored.
    All other arguments may follow in later calls. The first value given for each wins, also over a detected one.

    Args:
        run: name of the training run, the same on all ranks and across restarts.
        rank, world_size: this process's rank, and the number of ranks of the run.
        attempt: 1 for the first start of the run, then 2, 3, ...
        device, device_uuid, devices: name and id of the accelerator, and how many of them this rank drives.
        group: ranks with the same text take part in the same collectives; by default all ranks do.
        role: what the process does in a run of several kinds, such as "trainer" or "generator". Each role has an
            account of its own, and is a group of its own unless `group` is given.
        stage, tensor: pipeline stage and tensor-parallel rank.
        microbatches: per step, for the unavoidable part of the pipeline bubble. With goodput.auto, schedules of
            torch.distributed.pipelining declare it and the stage themselves.
        total_steps: of the whole training, for what each cause costs over it. The Trainers of transformers and
            Lightning declare it themselves.
        dtype: of the matrix products, such as "bf16", or shares of the FLOPs, such as "bf16=0.8,fp8=0.2".
            With `device` it gives the peak, for known devices.
        flops_per_step: model FLOPs of one step of this rank, without recomputation, for MFU.
        hardware_flops_per_step: the same with recomputation, for HFU.
        peak_flops_per_second: dense peak of all devices of this rank together.
        ideal_samples_per_second: throughput of this rank if nothing were lost.
        gpu_hour_cost: price of one GPU-hour in dollars.
        gpu_power_watts: mean power of one device, for energy by state.
        submit_time: unix seconds at which the job was submitted; the wait since then counts as `queue`.
        directory: where rank pages are written; default `$GOODPUT_DIR`, else /run/goodput where root has
            made it, else /dev/shm/goodput.
    """
    given = {name: value for name, value in locals().items() if value is not None and name != "others"}
    for name in others:
        _session.warn(f"start has no argument {str(name)[:40]!r}; it is ignored")
    _session.start(**given)


def phase(name: str, state: str | None = None):
    """Time a phase, as a context manager or a decorator.

        with goodput.phase("forward"):
            loss = model(batch)

    Built in are loader, h2d, forward, backward, optimizer, communication, checkpoint, restore, evaluation,
    compile and rollout; you can define 16 more. `state` is the state of the account that the time of your own phase counts as:
    productive, loader, h2d, communication, checkpoint, restore, evaluation, rollout, compile, startup or
    unattributed (default).
    Phases nest: time in an inner phase does not count for the outer one.
    """
    try:
        found = _phases[name]
    except Exception:
        return _session.phases.define(name, state)
    if state is not None:
        _session.phases.check_state(name, state)
    return found


def progress(total_steps: int) -> None:
    """Declare the number of steps of the whole training, those before a resume included.

    `goodput run` then shows one line for the job: steps, rate, time left, goodput, slowest rank. This process does
    nothing for it but to write the number into its rank page. The same as `goodput.start(total_steps=...)`: call
    `goodput.start` first where you name the run or the rank. The Trainers of transformers and Lightning need no call.
    """
    if total_steps is None:
        return _session.warn("progress(None): want the number of steps of the training; ignored")
    _session.start(total_steps=total_steps)


def steps(iterable, samples: int = 0):
    """Iterate over a loader: the wait for each item is phase `loader`, and each iteration of the loop is one step.

    `samples` is the number of samples (or tokens) per step on this rank, for throughput.
    """
    _by_hand()
    return _steps(_session.recorder, phase("loader"), iterable, _session.samples(samples))


def loader(iterable):
    """Iterate over a loader, timing the wait for each item as phase `loader`, without counting steps.

    For a loader that `goodput.auto` does not know; it detects the steps itself.
    """
    return _timed(_session, phase("loader"), iterable)


def step(index: int | None = None, samples: int = 0):
    """Time one step, as a context manager, where `goodput.steps` does not fit the loop.

    `index` defaults to one more than the last step's and cannot decrease (see `goodput.resumed`); `samples` is the
    number of samples (or tokens) of the step.
    """
    _by_hand()
    return _Step(_session.recorder, _session.step_index(index), _session.samples(samples))


def _by_hand() -> None:
    """Steps marked by hand switch off the step detection of goodput.auto."""
    if _session.automatic is not None:
        _session.automatic.use_manual_steps()


def checkpoint(step: int | None = None, wait: bool = True):
    """Record a checkpoint of the work up to `step`: by default the running step, or the last one between steps.

        with goodput.checkpoint(step):      # times the save; committed at the end, unless it raises
            torch.save(...)
        goodput.checkpoint(step)            # a checkpoint that is already on disk

    With `wait=False` the checkpoint is written in the background, and committed when `.commit()` is called. After a
    crash, work since the last committed checkpoint counts as lost.
    """
    return _begin_checkpoint(_session, phase("checkpoint"), step, wait)


def checkpoint_due(failures=(), ends=None) -> bool:
    """Whether saving a checkpoint now is best, for the failures of this run and the cost of its saves so far.

        if agreed(goodput.checkpoint_due()):        # ask on one rank, and broadcast its answer
            with goodput.checkpoint(step):
                torch.save(...)

    True from the moment at which a save is due until one is begun. Ranks answer by their own clocks and saves, so
    they may differ: where all have to save together, let one of them decide. `failures` are how many seconds each
    earlier attempt lived until it failed, oldest first, for a first call where their rank pages are not on this
    machine. `ends` is when the job will be ended, in seconds since the epoch, for a last save just before that; without
    it the end of a Slurm job (SLURM_JOB_END_TIME) counts. Without a measurement, none is due. docs/in-the-loop.md has
    the policy.
    """
    global _checkpoint_due
    if _checkpoint_due is None:
        from goodput.sdk.reports.checkpoint_due import CheckpointDue

        _checkpoint_due = CheckpointDue(_session)
    return _checkpoint_due.is_due(failures, ends)


def resumed(step: int) -> None:
    """Continue after `step`, the last step whose work was restored from a checkpoint; -1 when from scratch."""
    _session.resume(step)


def mark(text: str) -> None:
    """Record an event with up to 216 bytes of text, shown on the run's timeline."""
    _session.mark(text)


def stop(reason: str = "finished") -> None:
    """Stop measuring before the process exits; `reason` is "finished" or "failed". `start` may follow."""
    _session.stop(reason)


def report():
    """This process's account so far: print it, or read its `.account`, a dictionary.

    It covers this rank alone, from its own page; no agent or aggregator is needed. Without a measurement it is empty.
    """
    return _report(_session)


def window(seconds: float = 60):
    """Rates, goodput and quantiles over the last `seconds` of this process, cheap enough to log at every step.

        now = goodput.window(seconds=60)
        now.steps_per_second, now.goodput, now.goodput_so_far, now.step.p99_seconds, now.phases["loader"].share
        wandb.log(now.scalars())

    A call costs about 20 us. Without a measurement the window has no steps.
    """
    return _windows.window(seconds)
