"""Metadata read from a model: dtype, FLOPs by formula or counted, otherwise unknown with the reason."""

import json
import os
import re
import socket
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from support.frameworks.script_process import SCRIPTS, run_script
from support.installed import need
from support.mentions import mentions_goodput
from support.paths import PYTHONPATH
from support.servers.servers import wait_until

from goodput.account.mfu.flops import transformer
from goodput.defaults import FLOPS_COUNTING
from goodput.flops import cpu_peak
from goodput.rank_page.reader import Reader
from goodput.sdk.automatic.frameworks.torch.model import uses_tf32

need("torch")


def run(directory, *arguments: str, **environ) -> tuple[dict, str]:
    """The identity in the rank page, and the sum of the weights."""
    environ.update(GOODPUT_DIR=str(directory), HF_HUB_OFFLINE="1", XDG_CACHE_HOME=str(directory))
    done = run_script("model_metadata.py", *arguments, forked="torch", **environ)
    assert not mentions_goodput(done.stderr), done.stderr
    steps, weights = done.stdout.split()[-2:]
    (page,) = directory.glob("*.page")
    # The process that counts may live longer than the training.
    identity: Any = wait_until(lambda: identity_in(page), 60, "the FLOPs of a step")
    return {**identity, "steps": int(steps)}, weights


def identity_in(page) -> dict | None:
    """The page's identity, None while the FLOPs are being counted."""
    with Reader(str(page)) as reader:
        found = reader.snapshot().identity
    is_counting = found["flops_per_step"] is None and found["flops_unknown"] == FLOPS_COUNTING
    return None if is_counting else found


def test_transformers_model_in_a_plain_loop(tmp_path):
    need("transformers")
    printed, _ = run(tmp_path, "gpt2", "autocast")
    # By hand: 2 layers of 12 * 32^2 in matrix products, and the output layer, which shares its weights: 100 * 32.
    one = transformer(
        params=2 * 12 * 32 * 32 + 100 * 32, tokens=4 * 16, layers=2, heads=2, head_dim=16, context=16
    )
    # Two backward passes make a step.
    assert printed["flops_per_step"] == pytest.approx(2 * one.model, rel=1e-9)
    assert printed["hardware_flops_per_step"] == pytest.approx(2 * one.hardware, rel=1e-9)
    assert (printed["dtype"], printed["steps"]) == ("bf16", 3)
    assert printed["device"] == cpu_peak.device_name(1)


def test_other_model_is_counted_by_default(tmp_path):
    unknown, weights = run(tmp_path / "a", "mlp", GOODPUT_COUNT_FLOPS="0")
    assert (unknown["dtype"], unknown["flops_per_step"], unknown["steps"]) == ("fp32", None, 3)
    counted, same = run(tmp_path / "b", "mlp")
    # Two layers: forward, and backward for the weights of both and the inputs of the second; twice a step.
    first, second = 2 * 4 * 16 * 32, 2 * 4 * 32 * 8
    assert counted["flops_per_step"] == 2 * (2 * first + 3 * second)
    assert same == weights


@pytest.mark.parametrize(
    ("arguments", "dtype"),
    [
        (["inside"], "bf16"),
        (["fsdp2"], "bf16"),
        (["fsdp2", "layers"], "bf16"),
        (["accelerate"], "bf16"),
        (["accelerate", "compiled"], "bf16"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else each,
)
def test_dtype_is_that_of_the_products(tmp_path, arguments, dtype):
    if arguments[0] == "accelerate":
        need("accelerate")
    printed, _ = run(tmp_path, *arguments, GOODPUT_COUNT_FLOPS="0")
    assert printed["dtype"] == dtype


@pytest.mark.parametrize(
    ("matmul", "uses"),
    [
        (SimpleNamespace(fp32_precision="tf32"), True),  # Here PyTorch raises where the older flag is read.
        (SimpleNamespace(fp32_precision="none"), False),
        (SimpleNamespace(allow_tf32=True), True),
        (SimpleNamespace(allow_tf32=False), False),
    ],
)
def test_both_settings_of_tf32_are_read(matmul, uses):
    torch = SimpleNamespace(backends=SimpleNamespace(cuda=SimpleNamespace(matmul=matmul)))
    assert uses_tf32(torch) is uses


def test_data_parallel_rank_is_counted_alone(tmp_path):
    """DistributedDataParallel is unwrapped, and a module that is called twice counts twice."""
    counted, _ = run(tmp_path, "ddp")
    first, second = 2 * 4 * 16 * 32, 2 * 4 * 32 * 8
    assert counted["flops_per_step"] == counted["hardware_flops_per_step"] == 2 * (2 * first + 3 * second)
    assert counted["device"] == cpu_peak.device_name(1)


# `goodput report`, which waits longer for the count, and measures the CPU also while other tests use it.
ON_A_BUSY_MACHINE = """
from goodput.cli import main, report
from goodput.flops import cpu_peak
cpu_peak.CPU_SHARE_LEAST, report.COUNT_SECONDS_MAX = 0.0, 120
raise SystemExit(main())
"""


def test_account_shows_mfu(tmp_path):
    """A report counts, measures the CPU's peak after the training, and shows MFU; the next run declares it."""
    pages = ["--directory", str(tmp_path / "pages")]
    environ = {**os.environ, "PYTHONPATH": PYTHONPATH, "XDG_CACHE_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "goodput", "run", *pages, str(SCRIPTS / "model_metadata.py"), "mlp"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0 and "finished, 1 rank" in done.stderr, done.stderr
    # While other tests use all cores, the report of `goodput run` may find no moment to measure, and has no line on MFU.
    assert "MFU unknown" not in done.stderr, done.stderr
    command = [sys.executable, "-c", ON_A_BUSY_MACHINE, "report", "--full", *pages]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0 and "MFU unknown" not in done.stdout, done.stdout + done.stderr
    assert re.search(r"MFU [0-9.]+ % = goodput x compute efficiency", done.stdout), done.stdout
    (entry,) = json.loads((tmp_path / "goodput" / "cpu-peaks.json").read_text()).items()
    assert entry[0].startswith(f"{socket.gethostname()}|{cpu_peak.device_name(1)}|fp32|torch ")
