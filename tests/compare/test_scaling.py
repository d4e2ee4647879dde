"""Scaling efficiency against numbers by hand: of the whole and by state, per GPU and per dollar."""

import json

import numpy as np
import pytest
from support.compare.logs import autocorrelated, write_log

from goodput.account.states import INDEX, STATES
from goodput.cli import main
from goodput.compare.comparison import NotComparable
from goodput.compare.scaling import scaling
from goodput.compare.steps import Steps

MS = 1_000_000


def run(gpus: int, loader_ms, productive_ms, samples: int = 0, price: float | None = 2.0, **more) -> Steps:
    """One rank a GPU; each step lasts so many ms of both; `samples` are those of a rank's step."""
    loader, productive = np.broadcast_arrays(np.atleast_1d(loader_ms), productive_ms)
    if len(loader) == 1:
        loader, productive = np.repeat(loader, 40), np.repeat(productive, 40)
    count = len(loader)
    states = np.zeros((count, len(STATES)), np.int64)
    states[:, INDEX["loader"]] = np.rint(gpus * loader * MS)
    states[:, INDEX["productive"]] = np.rint(gpus * productive * MS)
    steps = np.arange(1, count + 1)
    found = Steps(f"on {gpus}", steps, states, np.full(count, gpus), np.full(count, gpus * samples), steps)
    found.gpus, found.gpu_hour_cost = gpus, price
    for name, value in more.items():
        setattr(found, name, value)
    return found


def test_weak_scaling_by_hand():
    """A GPU's step takes 100 ms on 2 GPUs and 125 ms on 8: efficiency 80 %; of the 20 points 16 are the loader's."""
    found = scaling([run(8, 40, 85, samples=32), run(2, 20, 80, samples=32)])
    assert (found.kind, [one.gpus for one in found.sizes]) == ("weak", [2, 8])
    base, eight = found.sizes
    assert (base.efficiency, base.speed_up, base.work.ns) == (1.0, 1.0, 100 * MS)
    assert eight.efficiency == pytest.approx(0.8) and eight.speed_up == pytest.approx(3.2)
    assert eight.work.ns == 125 * MS and eight.work.lost == pytest.approx(0.2)
    assert [(one.name, one.change_ns, one.lost) for one in eight.parts] == [
        ("loader", 20 * MS, pytest.approx(0.16)),
        ("productive", 5 * MS, pytest.approx(0.04)),
    ]
    assert (eight.low, eight.high) == pytest.approx((0.8, 0.8), abs=1e-9)


def test_strong_scaling_by_hand():
    """The same 64 samples in 100 ms on 2 GPUs and in 40 ms on 8: 200 and 320 GPU-ms, so 62.5 %, 2.5 times as fast."""
    found = scaling([run(2, 10, 90, samples=32), run(8, 15, 25, samples=8)])
    eight = found.sizes[1]
    assert (found.kind, found.unit, eight.step_ns, eight.work.ns) == ("strong", "step", 40 * MS, 320 * MS)
    assert eight.efficiency == pytest.approx(0.625) and eight.speed_up == pytest.approx(2.5)
    # 120 - 20 and 200 - 180 GPU-ms of 320.
    assert [(one.name, one.lost) for one in eight.parts] == [
        ("loader", pytest.approx(0.3125)),
        ("productive", pytest.approx(0.0625)),
    ]


def test_samples_where_batches_are_neither():
    """48 samples in 100 ms on 2 GPUs, 96 in 60 ms on 4: 4.1667 and 2.5 GPU-ms a sample."""
    runs = [run(2, 0, 100, samples=24), run(4, 0, 60, samples=24 * 2), run(8, 0, 60, samples=3)]
    with pytest.raises(NotComparable, match="48 on 2, 192 on 4, 24 on 8 GPUs"):
        scaling(runs)
    found = scaling(runs[:2], "samples")
    assert found.sizes[0].work.ns == 4_166_667 and found.sizes[1].work.ns == 1_250_000
    assert found.sizes[1].efficiency == pytest.approx(10 / 3)


def test_dollars_where_prices_differ():
    """80 % of the work for each GPU at 1.6 times the price is half of the work for a dollar."""
    found = scaling([run(2, 20, 80, price=2.0), run(8, 40, 85, price=3.2)], "weak").sizes[1]
    assert found.per_dollar == pytest.approx(0.5)
    assert found.dollars == pytest.approx(1000 * 0.125 / 3600 * 3.2)
    assert scaling([run(2, 20, 80, price=None), run(8, 40, 85)], "weak").sizes[1].per_dollar is None


def test_parts_add_up_to_the_nanosecond():
    random = np.random.default_rng(7)
    runs = [run(n, random.uniform(1, 9, 333), random.uniform(50, 60, 333)) for n in (2, 3, 3, 7)]
    for size in scaling(runs, "strong").sizes:
        assert sum(one.ns for one in size.parts) == size.work.ns
        assert sum(one.change_ns for one in size.parts) == size.work.change_ns
        assert sum(one.lost for one in size.parts) == pytest.approx(1 - size.efficiency, abs=1e-12)


def test_intervals_cover_the_efficiency():
    """300 pairs of 400 steps with an autocorrelation of 0.5, around steps of 100 and 125 ms."""
    random = np.random.default_rng(5)
    noise = 3 * autocorrelated(random, 400, 0.5, 600)
    covered = {"all": 0, "loader": 0}
    for base, new in zip(noise[::2], noise[1::2], strict=True):
        found = scaling([run(2, 20 + base, 80), run(8, 40 + new, 85 + base / 3)], "weak").sizes[1]
        covered["all"] += found.low <= 0.8 <= found.high
        loader = next(one for one in found.parts if one.name == "loader")
        covered["loader"] += loader.low <= 0.16 <= loader.high
    # Three standard deviations of a share of 95 % of 300 are 3.8 points.
    assert all(0.912 <= count / 300 <= 0.988 for count in covered.values()), covered


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        ([run(2, 1, 9), run(2, 1, 9)], "all runs have 2 GPUs"),
        ([run(2, 1, 9), run(4, 1, 9)], "no samples are recorded.*--scaling strong"),
        ([run(2, 1, 9, devices=("A",)), run(4, 1, 9, devices=("B",))], "runs on A and B; --any-device"),
    ],
)
def test_what_does_not_scale_is_refused(runs, words):
    with pytest.raises(NotComparable, match=words):
        scaling(runs)


@pytest.fixture
def logs(tmp_path):
    """Logs of 2, 4 and 8 ranks with the same samples on each, the larger ones slower."""
    found = []
    for ranks, length, loader in ((2, 0.5, 0.1), (4, 0.52, 0.115), (8, 0.6, 0.18)):
        noise = 0.01 * autocorrelated(np.random.default_rng(ranks), 301, 0.5)[0]
        path = tmp_path / f"{ranks}.jsonl"
        found.append(
            write_log(path, length + noise, loader, ranks=ranks, name=f"on {ranks}", gpu_hour_cost=2.0)
        )
    return found


def test_command_prints_sizes_and_states(logs, tmp_path, capsys):
    page = tmp_path / "page.html"
    assert main(["compare", *logs, "--scaling", "--html", str(page)]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert "weak scaling: a GPU's step does the same work" in text and "8 GPUs: efficiency 83." in text
    assert ": loader -13." in text and "per dollar" in text
    assert main(["compare", *logs, "--scaling", "--markdown"]) == 0
    assert (
        "| GPUs | step ms | efficiency, 95 % | speed-up | per dollar | $ of 1,000 |"
        in capsys.readouterr().out
    )
    assert main(["compare", *logs, "--scaling", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["gpus"] for one in found["sizes"]] == [2, 4, 8] and found["kind"] == "weak"
    html = page.read_text()
    assert html.count("<svg") == 2 and "http" not in html.replace("http-equiv", "")


def test_wrong_calls_of_scaling(logs, capsys):
    for words, expected in (
        ([*logs, "--scaling", "--fail-if-slower", "2%"], "--fail-if-slower compares two sides"),
        ([logs[0], "--scaling"], "at least two sizes"),
        ([*logs, "--scaling", "weak", "--per", "sample"], "work is either samples or steps"),
    ):
        assert main(["compare", *words]) == 2
        assert expected in capsys.readouterr().err
