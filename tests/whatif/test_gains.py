"""The gains of causes and slow ranks by replay, in the account's document, text and advice."""

import json

import numpy as np
import pytest
from support.whatif.runs import write_run

from goodput.cli import main


@pytest.fixture
def run(tmp_path):
    """Four ranks, 100 steps: 100 ms of compute, 10 ms of exchange; rank 2's loader takes 50 ms instead of 10."""
    loader = np.full((100, 4), 0.01)
    loader[:, 2] = 0.05
    return write_run(tmp_path / "run.jsonl", {"loader": loader, "forward": np.full((100, 4), 0.1)})


def causes(capsys, path: str, *words: str) -> dict:
    assert main(["replay", path, "--json", *words]) == 0
    return {cause["state"]: cause for cause in json.loads(capsys.readouterr().out)["causes"]}


def test_gain_of_one_ranks_loader_is_that_of_all(run, capsys):
    """By hand: 17 s in all, 1 of start, 100 steps of 160 ms; without the loader steps take 110 ms. The share says 12 %."""
    found = causes(capsys, run)
    assert found["loader"]["gain_basis"] == "replay" and found["unobserved"]["gain_basis"] == "share"
    outside = (0.01 * 3 + 0.05) / 4  # the first step's, of which only the share is known
    assert found["loader"]["gain"] == pytest.approx(17 / (17 - 99 * 0.05 - outside), rel=1e-3)
    # All as fast as the median, which saves 40 ms a step; the work spread evenly would save 30.
    assert found["straggler"]["gain"] == pytest.approx(17 / (17 - 99 * 0.04), rel=1e-3)
    assert found["communication"]["gain"] == pytest.approx(17 / (17 - 100 * 0.01), rel=1e-3)
    assert "As fast as the median rank, the run would be 1.30x as fast." in found["straggler"]["advice"]
    share = found["loader"]["share"]
    assert share == pytest.approx(0.08 / 4 / 0.17, rel=1e-3) and found["loader"]["gain"] > 1.4


def test_text_names_only_gains_by_share_as_such(run, capsys):
    assert main(["replay", run, "--full"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "straggler, 17.6 % of all GPU time; without it the run would be 1.30x as fast" in text
    assert "by its share" not in text
    assert main(["replay", run, "--full", "--end", "10"]) == 0
    assert "as fast, by its share alone" in " ".join(capsys.readouterr().out.split())


def test_window_has_gains_by_share(run, capsys):
    assert {cause["gain_basis"] for cause in causes(capsys, run, "--end", "10").values()} == {"share"}
