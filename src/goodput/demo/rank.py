"""One rank of the demo's training run: a data-parallel loop with goodput as its only instrumentation.

The first argument is a Job as JSON; rank and world size come from the environment. Independently of goodput the rank
writes notes: per completed step one line with the seconds its loader slept, by `os.write`, which a SIGKILL cannot undo.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

import numpy as np

import goodput
from goodput.demo import checkpoint
from goodput.demo.allreduce import ProcessGroup
from goodput.demo.model import Adam, Model, Sizes
from goodput.demo.text import Batches, Vocabulary, read_standard_library

COLLECTIVE_SECONDS_MAX = 120.0


@dataclass(frozen=True)
class Job:
    """A rank's instructions. Times are unix seconds."""

    run: str
    directory: str
    loader_delay_seconds: float  # of this rank
    checkpoint_every: int
    stop_at: float
    steps_min: int  # of this attempt, even when the time is up
    kill_at_step: int | None  # this rank kills itself in this step
    kill_at_time: float | None  # or in the first step after this time
    peak_flops_per_second: float

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def main() -> int:
    job = Job(**json.loads(sys.argv[1]))
    rank, world_size, attempt = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "GOODPUT_ATTEMPT"))
    notes = os.open(notes_path(job.directory, rank, attempt), os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    try:
        _train(job, rank, world_size, attempt, notes)
    except OSError as error:  # Another rank died; the error names it.
        print(f"rank {rank}: {error}", flush=True)
        goodput.stop("failed")
        return 1
    return 0


def notes_path(directory: str, rank: int, attempt: int) -> str:
    return os.path.join(directory, f"notes-{attempt}-{rank}")


def _train(job: Job, rank: int, world_size: int, attempt: int, notes: int) -> None:
    sizes, folder = Sizes(), Path(job.directory)
    model = Model(sizes, extras=1)
    adam = Adam(model.parameters.size)
    goodput.start(
        run=job.run,
        device="one core of a CPU, 1 thread",
        flops_per_step=model.flops_per_step(),
        peak_flops_per_second=job.peak_flops_per_second,
    )
    text = read_standard_library()
    tokens = Vocabulary(text, sizes.vocabulary).encode(text)
    batches = Batches(tokens, rank, world_size, sizes.batch, sizes.context, sizes.seed)
    with goodput.phase("restore"):
        restored = checkpoint.restore(folder / "checkpoint.npz", model, adam)
    first = 0 if restored is None else restored + 1
    if attempt > 1:
        goodput.resumed(first - 1)
    meeting = folder / f"group-{attempt}"
    meeting.mkdir(exist_ok=True)
    group = ProcessGroup(rank, world_size, meeting, COLLECTIVE_SECONDS_MAX)
    loader = _Loader(batches, first, job.loader_delay_seconds)
    steps = cast("Iterator[tuple[np.ndarray, np.ndarray]]", goodput.steps(loader, samples=sizes.batch))
    for tokens, targets in steps:
        step = loader.step
        with goodput.phase("forward"):
            model.forward(tokens, targets)
            _maybe_die(job, step, notes)
        with goodput.phase("backward"):
            model.backward()
        with goodput.phase("communication"):
            # The stop flag is averaged with the gradient, so that all ranks stop after the same step.
            is_over = time.time() >= job.stop_at and step - first + 1 >= job.steps_min
            model.extras[0] = float(rank == 0 and is_over)
            group.mean(model.message)
        with goodput.phase("optimizer"):
            adam.update(model.parameters, model.gradient)
        if rank == 0 and (step + 1) % job.checkpoint_every == 0:
            with goodput.checkpoint(step):
                checkpoint.save(folder / "checkpoint.npz", step, model, adam)
        os.write(notes, f"{step} {loader.slept_seconds:.9f}\n".encode())
        if model.extras[0] > 0:
            goodput.start(total_steps=step + 1)  # Not known earlier, since the clock ends the run.
            break
    group.close()


class _Loader:
    """Batches from step `first` on, each after a planted delay, whose measured length is kept."""

    def __init__(self, batches: Batches, first: int, delay_seconds: float):
        self._batches, self._delay_seconds = batches, delay_seconds
        self.step, self.slept_seconds = first - 1, 0.0

    def __iter__(self) -> _Loader:
        return self

    def __next__(self) -> tuple[np.ndarray, np.ndarray]:
        self.step += 1
        if self._delay_seconds > 0:
            began = time.perf_counter()
            time.sleep(self._delay_seconds)
            self.slept_seconds = time.perf_counter() - began
        return self._batches.fetch(self.step)


def _maybe_die(job: Job, step: int, notes: int) -> None:
    """Send SIGKILL to this process in the middle of a step."""
    is_time = job.kill_at_time is not None and time.time() >= job.kill_at_time
    if is_time or step == job.kill_at_step:
        os.write(notes, f"killed {step} {time.time():.9f}\n".encode())
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
