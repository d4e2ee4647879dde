"""`goodput.loggers` with the real TensorBoard, W&B (offline) and MLflow (file store), each in a process of its own."""

import json
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
from support.installed import need
from support.paths import ROOT

import goodput
from goodput import loggers

SECONDS_MAX = 120
TRAIN = """
import json, os, sys, threading, time
import goodput
from goodput import loggers
goodput.start(run="r", directory={directory!r} + "/pages")
def train(count, log):
    for step in range(count):
        with goodput.step(samples=4):
            with goodput.phase("forward"): time.sleep(0.001)
            with goodput.phase("mine!"): pass
        log(step)
"""


def in_process(tmp_path, code: str, **environment: str):
    """What the code prints last, as JSON, and standard error."""
    program = TRAIN.format(directory=str(tmp_path)) + code
    environment = {
        "PYTHONPATH": str(ROOT / "src"),
        "HOME": str(tmp_path),
        "PATH": "/usr/bin:/bin",
        **environment,
    }
    command = [sys.executable, "-c", program]
    found = subprocess.run(
        command, capture_output=True, text=True, timeout=SECONDS_MAX, env=environment, cwd=tmp_path
    )
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout.splitlines()[-1]), found.stderr


def test_tensorboard(tmp_path):
    need("tensorboard")
    found, errors = in_process(
        tmp_path,
        """
from tensorboard.summary import Writer
writer = Writer("logs")
train(21, lambda step: loggers.tensorboard(writer, step, every=10, report_every=20))
writer.close()
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator("logs"); events.Reload()
print(json.dumps({tag: [(one.step, one.tensor_proto.float_val[0]) for one in events.Tensors(tag)]
                  for tag in events.Tags()["tensors"]}))
""",
    )
    assert [step for step, _ in found["goodput/goodput"]] == [0, 10, 20]
    assert found["goodput/samples_per_second"][1][1] == pytest.approx(
        4 * found["goodput/steps_per_second"][1][1], rel=1e-5
    )
    assert {"goodput/forward/p95_seconds", "goodput/mine!/share", "goodput/step_p99_seconds"} <= set(found)
    ((step, kept),) = found["goodput/account/steps_kept"]
    assert (step, kept) == (20, 21.0)
    shares = [
        values[0][1]
        for name, values in found.items()
        if name.startswith("goodput/account/") and "_share" in name
    ]
    assert sum(shares) == pytest.approx(1, abs=1e-4)
    assert errors == ""


def test_wandb_values_join_the_next_log(tmp_path):
    """The loop's own steps and values are as without goodput."""
    need("wandb")
    found, _ = in_process(
        tmp_path,
        """
import wandb
run = wandb.init(mode="offline", dir=".", project="p", settings=wandb.Settings(silent=True, x_disable_stats=True))
def log(step):
    loggers.wandb(run, every=5, report_every=0)
    run.log({"loss": float(step)})
train(12, log)
run.finish()
from wandb.proto import wandb_internal_pb2 as proto
import glob, struct
(path,) = glob.glob("wandb/offline-run-*/*.wandb")
def history():
    content, at, rows = open(path, "rb").read(), 7, []
    assert len(content) < 32768  # One block of a LevelDB log, so each record is in one piece.
    while at + 7 <= len(content):
        _checksum, size, kind = struct.unpack_from("<IHB", content, at)
        assert kind == 1
        at += 7 + size
        if at > len(content):
            break
        record = proto.Record.FromString(content[at - size : at])
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            rows.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
    return rows
# W&B's own process may still write when finish() returns.
end = time.monotonic() + 60
while len(rows := history()) < 12 and time.monotonic() < end:
    time.sleep(0.02)
print(json.dumps(rows))
""",
        WANDB_MODE="offline",
    )
    assert [row["loss"] for row in found] == [float(step) for step in range(12)]
    assert [row["_step"] for row in found] == list(range(12))
    assert [row["_step"] for row in found if "goodput/goodput" in row] == [4, 9]  # after 5 and 10 steps


def test_mlflow(tmp_path):
    need("mlflow")
    found, errors = in_process(
        tmp_path,
        """
import mlflow
mlflow.set_tracking_uri("file://" + os.getcwd() + "/mlruns")
loggers.mlflow(mlflow, 0, every=1)
train(2, lambda step: loggers.mlflow(mlflow, step, every=1))
is_begun = mlflow.active_run() is not None
with mlflow.start_run() as run:
    train(11, lambda step: loggers.mlflow(mlflow, step, every=5, report_every=10))
train(6, lambda step: loggers.mlflow(mlflow, 20 + step, every=5, run_id=run.info.run_id))
client = mlflow.MlflowClient()
names = list(client.get_run(run.info.run_id).data.metrics)
history = client.get_metric_history(run.info.run_id, "goodput/goodput")
print(json.dumps([is_begun, names, [one.step for one in history]]))
""",
        MLFLOW_ALLOW_FILE_STORE="true",
        MLFLOW_DISABLE_TELEMETRY="true",
    )
    is_begun, names, steps = found
    assert not is_begun and steps == [0, 5, 10, 20, 25]
    assert {"goodput/mine_/share", "goodput/account/goodput"} <= set(names)
    assert errors.count("loggers.mlflow: no run is active") == 1


# ---- What the loop must never notice


@pytest.fixture
def session(tmp_path, monkeypatch):
    goodput.start(run="loggers", rank=0, directory=str(tmp_path))
    monkeypatch.setattr(loggers, "_warned", set())
    for _ in range(3):
        with goodput.step():
            pass
    yield
    goodput.stop()


class Broken:
    calls = 0

    def add_scalar(self, *_, **__):
        self.calls += 1
        raise OSError("disk full")

    log = log_metrics = active_run = add_scalar


def test_errors_of_writers_do_not_reach_the_loop(session, capfd):
    broken, threads = Broken(), threading.enumerate()
    for step in range(5):
        loggers.tensorboard(broken, step, every=1)
        loggers.wandb(broken, step, every=1)
        loggers.mlflow(broken, step, every=1, run_id="x")
        loggers.tensorboard(None, step, every=1)
        loggers.tensorboard(broken, "no step", every=1)  # pyright: ignore
        loggers.tensorboard(broken, step, every="often")  # pyright: ignore
    errors = capfd.readouterr().err
    assert broken.calls == 15 and errors.count("disk full; this is logged once") == 3
    assert threading.enumerate() == threads


@pytest.mark.parametrize("logs", [False, True])
def test_values_that_wandb_never_sends_are_said_once(session, capfd, monkeypatch, logs):
    """W&B's step grows with each `log` of the loop; what waits for one is replaced by what is written next."""
    monkeypatch.setattr(loggers, "_unsent", {"step": -1, "writes": 0})
    run = SimpleNamespace(step=7, log=lambda _values, **_: None)
    for _ in range(loggers.UNSENT_MAX):
        loggers.wandb(run, every=1, report_every=0)
    run.step += logs
    assert capfd.readouterr().err == ""
    for _ in range(3):
        loggers.wandb(run, every=1, report_every=0)
    assert capfd.readouterr().err.count("give step= to log them at once") == (not logs)
    for step in range(2 * loggers.UNSENT_MAX):
        loggers.wandb(run, step, every=1, report_every=0)
    assert capfd.readouterr().err == ""


def test_interrupts_reach_the_loop(session):
    def interrupted(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        loggers.tensorboard(SimpleNamespace(add_scalar=interrupted), 0, every=1)


def test_calls_are_due_by_their_step(session, monkeypatch):
    due = []
    monkeypatch.setattr(goodput, "report", lambda: due.append("report") or SimpleNamespace(account={}))
    writer = SimpleNamespace(add_scalar=lambda name, _value, step: due.append(step))
    for step in range(9):
        loggers.tensorboard(writer, step, every=4, report_every=8)
        loggers.tensorboard(writer, step, every=0, report_every=0)
    assert list(dict.fromkeys(due)) == [0, 4, "report", 8]
    loggers.tensorboard(writer, 7, every=7, report_every=0, prefix="train/")
    assert due[-1] == 7


def test_nothing_is_written_where_nothing_is_measured(monkeypatch):
    monkeypatch.setattr(goodput, "_session", SimpleNamespace(recorder=SimpleNamespace(words=None)))
    monkeypatch.setattr(goodput, "report", lambda: SimpleNamespace(account={}))
    monkeypatch.setattr(goodput, "window", lambda _: goodput.sdk.reports.window.Window(60.0))
    broken = Broken()
    loggers.tensorboard(broken, 1000, every=1)
    loggers.wandb(broken, every=1)
    assert broken.calls == 0
