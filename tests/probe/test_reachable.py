"""The report says the compute efficiency against what the run's nodes reached; numbers by hand."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from goodput.account.account import RankAccount
from goodput.account.states import PRODUCTIVE
from goodput.cli import main
from goodput.probe import kept, reachable

DEVICE = "NVIDIA H100 80GB HBM3"
TRAIN = """
import time
import goodput
goodput.start(run="r", directory={directory!r}, device={device!r}, dtype="bf16", flops_per_step=1e12)
for _ in goodput.steps(range(5)):
    with goodput.phase("forward"): time.sleep(0.002)
"""


def probe_of(host: str, **rates) -> None:
    """Keep a probe of two GPUs; the second is the figure."""
    figures = [
        {"name": name, "value": rate * share, "unit": "FLOP/s", "device": DEVICE, "index": index}
        for name, rate in rates.items()
        for index, share in enumerate((0.9, 1.0))
    ]
    assert kept.save({"host": host, "figures": figures})


def rank_of(number: int, host: str, productive_seconds: int, flops: float | None, **declared) -> RankAccount:
    rank = RankAccount(number, **{"dtype": "bf16", "devices": 1, **declared})
    rank.host, rank.flops = host, flops
    rank.states[PRODUCTIVE] = productive_seconds * 10**9
    return rank


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def efficiency(*ranks: RankAccount) -> float | None:
    return reachable.compute_efficiency(SimpleNamespace(ranks=ranks, device=DEVICE))  # type: ignore[arg-type]


def test_flops_over_what_each_node_reaches():
    probe_of("n0", gemm_bf16=700e12)
    probe_of("n1", gemm_bf16=600e12, gemm_fp8=1200e12)
    # 10 s at 700, 5 s of two devices at 600: 13e15 FLOPs could have been done.
    ranks = rank_of(0, "n0", 10, 4e15), rank_of(1, "n1", 5, 2.5e15, devices=2)
    assert efficiency(*ranks) == pytest.approx(6.5 / 13)
    # A rank that never reported has no productive time, and no node.
    assert efficiency(*ranks, rank_of(2, "", 0, 0.0)) == pytest.approx(0.5)
    # Half of the products at 600, half at 1200: 800 together.
    assert efficiency(rank_of(0, "n1", 10, 4e15, dtype="bf16=0.5,fp8=0.5")) == pytest.approx(0.5)


@pytest.mark.parametrize(
    "rank",
    [
        rank_of(0, "unprobed", 10, 1e15),
        rank_of(0, "n0", 10, None),
        rank_of(0, "n0", 10, 1e15, dtype="fp16"),
        rank_of(0, "n0", 10, 1e15, dtype="bf16=0.5,fp16=0.5"),
        rank_of(0, "n0", 10, 1e15, dtype=""),
        rank_of(0, "n0", 0, 1e15),
    ],
)
def test_unknown_without_figures(rank):
    probe_of("n0", gemm_bf16=700e12)
    assert efficiency(rank) is None


def test_report_has_it_beside_the_nominal(tmp_path, capsys):
    directory = str(tmp_path / "pages")
    script = TRAIN.format(directory=directory, device=DEVICE)
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
    assert main(["report", "--directory", directory, "--json"]) == 0
    before = json.loads(capsys.readouterr().out)
    assert before["reachable"] is None
    probe_of(before["ranks"][0]["host"], gemm_bf16=701e12)
    assert main(["report", "--directory", directory, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    nominal, reached = document["factors"]["compute_efficiency"], document["reachable"]["compute_efficiency"]
    assert reached == pytest.approx(nominal * 989.4 / 701)
    assert main(["report", "--directory", directory, "--full"]) == 0
    printed = capsys.readouterr().out
    assert f"{nominal:.1%} of the nominal peak, {reached:.1%} of the probed peak" in printed
