"""On a real GPU, goodput.auto's device clock matches CUDA events at the same boundaries, and changes no weights."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path

import pytest
from support.frameworks import script_process
from support.mentions import mentions_goodput

from goodput.account.mfu.peaks import peak
from goodput.rank_page import deep_look

pytestmark = pytest.mark.gpu
# Of the time of all steps, by which a phase may differ: marks lie a few microseconds from the boundaries of phases.
NEAR = 0.01
CASES = ("clean", "slow_loader", "large_copies", "item_each_step", "checkpoints", "cuda_graphs")
LEADING = {"slow_loader": "loader", "large_copies": "h2d", "checkpoints": "checkpoint"}
# A product of 4096 x 4096 matrices forward and two backward in each of six layers, one less in the first.
FLOPS_PER_STEP = 2 * 4096**3 * (6 * 3 - 1)
BATCH_BYTES = 2 * 4096**2


def run(place: Path, *cases: str, **environ: str) -> dict:
    if not os.path.exists("/dev/nvidiactl") or importlib.util.find_spec("torch") is None:
        pytest.skip("no NVIDIA GPU, or no PyTorch, here")
    written = place / "found.json"
    environ = {"GOODPUT_DIR": str(place / "pages"), "GOODPUT_BUDGET": "100%", **environ}
    done = script_process.run_script("gpu_training.py", written, *cases, **environ)
    assert not mentions_goodput(done.stderr), done.stderr
    return json.loads(written.read_text())


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict:
    return run(tmp_path_factory.mktemp("gpu"), *CASES)


@pytest.mark.parametrize("name", CASES)
def test_device_clock_matches_events(found, name):
    """Checkpoints are outside of steps; what lies between the marks and the phases is in no phase, and idle."""
    watch, page = found[name]["watch"], found[name]["page"]
    assert found[name]["device_state"] == "active"
    whole = sum(page.values())
    if name != "checkpoints":
        assert whole == pytest.approx(sum(watch.values()), rel=NEAR)
    for phase in ("h2d", "forward", "backward", "optimizer"):
        assert page.get(phase, 0.0) == pytest.approx(watch[phase], abs=NEAR * whole), phase
    waiting, idle = page.get("loader", 0.0), page["none"]
    assert waiting - NEAR * whole <= watch["loader"] <= waiting + idle + NEAR * whole


@pytest.mark.parametrize("name", CASES)
def test_weights_are_the_same(found, name):
    assert found[name]["same"]


@pytest.mark.parametrize(("name", "state"), LEADING.items())
def test_planted_delay_leads(found, name, state):
    account = found[name]["account"]
    assert account["advice_order"][0] == state, account["states"]


def test_mfu_is_that_by_hand(found):
    """The FLOPs of a step are counted, and the peak is the data sheet's in bfloat16."""
    account = found["slow_loader"]["account"]
    kept = sum(found["slow_loader"]["account"]["states"].values())
    expected = account["steps"]["kept"] * FLOPS_PER_STEP / (kept * peak("NVIDIA H100 80GB HBM3", "bf16"))
    assert account["factors"]["mfu"] == pytest.approx(expected, rel=0.01)


def test_deep_look_sees_the_kernels(tmp_path):
    run(tmp_path, "clean", STEPS="600", GOODPUT_DEEP_LOOK="0.2s", TMPDIR=str(tmp_path))
    looks = [deep_look.read(str(path)[: -len(deep_look.SUFFIX)]) for path in tmp_path.rglob("*.look.json")]
    results = [look["result"] for look in looks if look["result"]]
    assert results, looks
    for result in results:
        assert sum(result["states_ns"].values()) == result["wall_ns"]
        assert result["states_ns"]["compute"] / result["wall_ns"] > 0.8
        assert result["h2d_bytes"] == BATCH_BYTES
        assert result["top"][0]["kind"] == "compute"
