"""One line in the training loop that writes what goodput knows to TensorBoard, Weights & Biases or MLflow.

    from goodput import loggers

    loggers.tensorboard(writer, step, every=10)     # torch.utils.tensorboard.SummaryWriter, or one with add_scalar
    loggers.wandb(run, every=10)                    # what wandb.init() returned
    loggers.mlflow(mlflow, step, every=10)          # the module, with the run that mlflow.start_run() began

Everything is written through the user's own object, in the calling thread: no thread of ours, no wait, no exception, not
even one of the object (it is reported once, and the training continues). A call that is not due takes less than 1 us.

Names are stable: docs/in-the-loop.md lists them. Values are those of `goodput.window(seconds)` every `every` steps, and
those of `goodput.report()` every `report_every` steps but the first; 0 is never. Steps count from 0, and a call is due where
the step is a multiple. A report takes about 10 ms, the first one 0.2 s.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import goodput

EVERY, REPORT_EVERY, SECONDS = 10, 1000, 60.0
UNSENT_MAX = 20  # writes that wait for the loop's own `log`, before that is said
ACCOUNT = "account/"
_NOT_IN_MLFLOW = re.compile(r"[^\w\-. :/]", re.ASCII)
_warned: set[str] = set()
_unsent = {"step": -1, "writes": 0}  # since W&B's step last changed


def tensorboard(
    writer: Any,
    step: int,
    every: int = EVERY,
    *,
    seconds: float = SECONDS,
    report_every: int = REPORT_EVERY,
    prefix: str = "goodput/",
) -> None:
    """Write to a SummaryWriter of PyTorch or tensorboardX, or another object with `add_scalar(name, value, step)`."""

    def write(values: Mapping[str, float]) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)

    _log("tensorboard", write, step, every, seconds, report_every, prefix)


def wandb(
    run: Any,
    step: int | None = None,
    every: int = EVERY,
    *,
    seconds: float = SECONDS,
    report_every: int = REPORT_EVERY,
    prefix: str = "goodput/",
) -> None:
    """Write to a run of Weights & Biases.

    Without `step` the values go with the next `log` of the loop (`commit=False`) and take its step, so that W&B's own
    count of steps is not changed; calls are due by the number of steps that goodput has counted. With `step` they are
    logged at it, which must not decrease. A loop that logs nothing else needs `step`: without it each write replaces the
    one before, which is reported once.
    """

    def write(values: Mapping[str, float]) -> None:
        if step is None:
            run.log(dict(values), commit=False)
            _check_sent(getattr(run, "step", None))
        else:
            run.log(dict(values), step=step)

    _log("wandb", write, step, every, seconds, report_every, prefix)


def _check_sent(step: Any) -> None:
    """`step` is W&B's, which grows with each `log` of the loop."""
    if not isinstance(step, int):
        return
    _unsent["writes"] = _unsent["writes"] + 1 if step == _unsent["step"] else 1
    _unsent["step"] = step
    if _unsent["writes"] > UNSENT_MAX:
        problem = f"{UNSENT_MAX} writes wait for a run.log of the loop, each replaces the one before"
        _warn("wandb", f"{problem}; give step= to log them at once")


def mlflow(
    client: Any,
    step: int,
    every: int = EVERY,
    *,
    run_id: str | None = None,
    seconds: float = SECONDS,
    report_every: int = REPORT_EVERY,
    prefix: str = "goodput/",
) -> None:
    """Write to the run of `run_id`, by default the one that is active; `client` is the module `mlflow`.

    Characters of phase names that MLflow does not allow become `_`. Without a run nothing is written: MLflow would begin one.
    """

    def write(values: Mapping[str, float]) -> None:
        if run_id is None and client.active_run() is None:
            _warn("mlflow", "no run is active; call mlflow.start_run() first, or give run_id")
            return
        allowed = {_NOT_IN_MLFLOW.sub("_", name): value for name, value in values.items()}
        client.log_metrics(allowed, step=step, **({} if run_id is None else {"run_id": run_id}))

    _log("mlflow", write, step, every, seconds, report_every, prefix)


def account_scalars(prefix: str = "goodput/") -> dict[str, float]:
    """The figures of `goodput.report()` as a flat dictionary of floats; unknown ones are left out."""
    found = goodput.report().account
    if not found:
        return {}
    begin = prefix + ACCOUNT
    values = {begin + name: value for name, value in found["factors"].items() if value is not None}
    whole = found["gpu_seconds"]
    values |= {f"{begin}{state}_share": ns / whole for state, ns in found["states"].items() if ns and whole}
    values |= {f"{begin}steps_{name}": float(count) for name, count in found["steps"].items()}
    return {**values, f"{begin}gpu_hours": whole / 3600}


def _log(
    logger: str,
    write: Callable[[Mapping[str, float]], None],
    step: int | None,
    every: int,
    seconds: float,
    report_every: int,
    prefix: str,
) -> None:
    try:
        at = _steps_done() if step is None else step
        values: dict[str, float] = {}
        if every and at % every == 0:
            values = goodput.window(seconds).scalars(prefix)
        if report_every and at and at % report_every == 0:
            values |= account_scalars(prefix)
        if values:
            write(values)
    except Exception as error:
        _warn(logger, f"{type(error).__name__}: {error}")


def _steps_done() -> int:
    from goodput.rank_page.page import W_STEPS

    words = goodput._session.recorder.words
    return 0 if words is None else words[W_STEPS]


def _warn(logger: str, problem: str) -> None:
    """Once for each logger: a loop would repeat it at every step."""
    if logger not in _warned:
        _warned.add(logger)
        goodput._session.warn(f"loggers.{logger}: {problem}; this is logged once")
