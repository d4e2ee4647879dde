"""The knee of a loader from recorded figures; by hand, for queues as `test_limit` has them."""

import json
from dataclasses import replace

import pytest

from goodput.account import Attempt, Row
from goodput.cli import main
from goodput.probe.loader.recorded import Record, predict, record_of, waiting_most
from goodput.probe.loader.recorded_text import render


def recorded(
    workers: int, own: float, serial: float, besides: float = 0.001, part: str = "blocked"
) -> Record:
    """Workers that take `own` s side by side and `serial` s one at a time, of a training that takes `besides` s a batch."""
    cycle = max((own + serial) / workers, serial, besides)
    seconds = min(max(own + serial, workers * serial), workers * cycle)
    parts = {"cpu": 0.0, "blocked": own, "collate": 0.0}
    parts[part] += seconds - own
    return Record(
        f"run-{workers}",
        0,
        1,
        workers,
        32,
        1000,
        seconds,
        seconds / cycle,
        parts,
        cycle - besides,
        0.0,
        besides,
    )


@pytest.mark.parametrize("part", ["cpu", "blocked", "collate"])
@pytest.mark.parametrize("own, serial, knee", [(30, 10, 4), (45, 10, 6), (10, 40, 2), (110, 10, 12)])
@pytest.mark.parametrize("many", [16, 32])
def test_two_numbers_of_workers_tell_the_knee(part, own, serial, knee, many):
    """As the probe of the same queues finds it: (own + serial) / serial workers, to 5 % of the rate."""
    found = predict(
        [recorded(many, own / 1e3, serial / 1e3, part=part), recorded(1, own / 1e3, serial / 1e3, part=part)]
    )
    assert (found["limit"]["name"], found["besides"]) == (part, 0.001)
    assert abs(found["knee"] - knee) <= 1 and found["knee"] >= 0.95 * (own + serial) / serial


def test_training_that_is_slower_than_its_loader_needs_fewer_workers():
    """By hand: a batch every 20 ms and 70 ms of a worker: 3.5 workers, 3.33 for 95 % of the rate."""
    found = predict([recorded(8, 0.070, 0.0, 0.020)])
    assert (found["knee"], found["limit"]["name"], found["keep_up"]) == (4, "training", 4)
    # A loader that makes a batch in 0.5 ms needs no worker beside steps of 20 ms.
    assert predict([recorded(8, 0.0005, 0.0, 0.020)])["knee"] == 0


def test_one_number_of_busy_workers_gives_no_knee():
    found = predict([recorded(4, 0.010, 0.030)])
    assert (found["knee"], found["limit"]["name"]) == (None, "unknown")
    assert (
        "all records have num_workers=4" in found["limit"]["text"]
        and "another number too" in found["limit"]["text"]
    )


def test_idle_workers_that_are_too_few_tell_no_knee():
    """Workers that only an evaluation kept idle: 4 of the 12 that the training needs."""
    idle = replace(recorded(4, 0.060, 0.0, 0.005), busy=3.0)
    assert predict([idle])["knee"] is None


def test_waits_for_cores_tell_the_knee_of_one_number():
    """By hand: 8 workers of 40 ms, 80 ms with the wait for a core, so 4 of them are as fast."""
    one = replace(recorded(8, 0.080, 0.0), parts={"cpu": 0.080, "blocked": 0.0, "collate": 0.0}, delay=0.040)
    found = predict([one])
    assert (found["knee"], found["limit"]["name"]) == (4, "cpu")
    assert predict([replace(one, workers=1, busy=1.0)])["knee"] is None, (
        "one worker waits for other processes"
    )


def test_workers_that_scale_are_not_extrapolated():
    """A batch of 60 ms and steps of 5 ms need 12 workers, if these do not slow each other down either."""
    found = predict([recorded(n, 0.060, 0.0, 0.005) for n in (1, 4)])
    assert (found["knee"], found["keep_up"]) == (None, 12)
    assert "do not slow each other down up to 4.0 busy ones" in found["limit"]["text"]
    assert "num_workers=12 would keep up" in render(found)
    enough = predict([recorded(n, 0.060, 0.0, 0.020) for n in (1, 4)])
    assert (enough["knee"], enough["limit"]["name"]) == (3, "training")
    unmeasured = predict([replace(recorded(n, 0.060, 0.0), besides=None) for n in (1, 4)])
    assert unmeasured["knee"] is None and "use: unknown" in render(unmeasured)


def test_record_of_an_attempt_by_hand():
    """100 batches by 2 workers: 30 ms each, 10 of it on a core, 5 waiting for one, 6 collating; 10 ms idle, steps of 12 ms."""
    sums = {"dataset_ns": 24, "cpu_ns": 10, "delay_ns": 5, "collate_ns": 6, "idle_ns": 10}
    loader = {f"worker_{name}": ms * 100_000_000 for name, ms in sums.items()}
    loader |= {
        "worker_seen": 2,
        "worker_delay_known": 2,
        "worker_batches": 100,
        "workers": 2,
        "batch_size": 32,
    }
    attempt = Attempt(
        rank=3, attempt=1, start_ns=0, phases=("none", "loader", "forward", "checkpoint"), loader=loader
    )
    attempt.loader |= {"batches": 100, "wait_ns": 800_000_000}
    per_step = (1_000_000, 8_000_000, 11_000_000, 5_000_000)
    attempt.add_rows(
        Row(n, n, n * 10**8, (n + 1) * 10**8, 0, tuple(n * ns for ns in per_step), (0,) * 4)
        for n in range(1, 101)
    )
    found = record_of("run", attempt)
    assert found is not None and found.parts == pytest.approx(
        {"cpu": 0.015, "blocked": 0.009, "collate": 0.006}
    )
    assert (found.seconds, found.delay, found.wait) == pytest.approx((0.030, 0.005, 0.008))
    assert (found.busy, found.besides) == pytest.approx((1.5, 0.012))
    attempt.unmeasured = 1
    unmeasured = record_of("run", attempt)
    assert unmeasured is not None and unmeasured.besides is None
    attempt.loader["worker_batches"] = 19
    assert record_of("run", attempt) is None


def test_rank_that_waits_most_stands_for_its_run():
    slow = replace(recorded(4, 0.05, 0.0), rank=2, wait=0.04)
    assert waiting_most([replace(slow, rank=0, wait=0.001), slow, replace(slow, rank=1, wait=0.03)]) == [slow]


def test_text_has_80_columns():
    records = [replace(recorded(n, 0.030, 0.010), run="a-run-with-quite-a-long-name-" * 3) for n in (1, 8)]
    text = render(predict([*records, replace(records[0], batch_size=64, batches=20)]))
    assert max(map(len, text.splitlines())) <= 80
    assert "1 more with batches of another size are left out" in text and "use: num_workers=4" in text


def test_command_says_what_is_missing(tmp_path, capsys):
    assert main(["probe", "loader"]) == 2
    assert "name a loader as module:function, or a training with --run or --pid" in capsys.readouterr().err
    assert main(["probe", "loader", "--run", "none", "--directory", str(tmp_path)]) == 1
    assert f"no such training in {tmp_path}; runs there: none" in capsys.readouterr().err
    assert main(["probe", "loader", "--pid", "1", "--directory", str(tmp_path / "no")]) == 1
    assert "No such file or directory" in capsys.readouterr().err
    assert json.dumps(predict([recorded(4, 0.01, 0.03)]))
