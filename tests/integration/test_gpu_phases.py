"""A real GPU, its real driver and a real training loop: what the GPU did, by the phase that its rank was in."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.paths import SUPPORT
from support.servers import servers

SECONDS_SEEN = 20.0  # of the phases, before they are judged


def ended(child: subprocess.Popen) -> None:
    if child.poll() is None:
        child.kill()
    child.wait()


def by_phase(text: str, name: str, **wanted: str) -> dict[str, float]:
    samples = (s for family in text_string_to_metric_families(text) for s in family.samples if s.name == name)
    return {
        sample.labels["phase"]: sample.value for sample in samples if wanted.items() <= sample.labels.items()
    }


@pytest.mark.gpu
@pytest.mark.torch
def test_gpu_is_active_in_compute_phases(tmp_path):
    if not os.path.exists("/dev/nvidiactl") or importlib.util.find_spec("torch") is None:
        pytest.skip("no NVIDIA GPU, or no PyTorch, here")
    (tmp_path / "pages").mkdir()
    environ = {
        **os.environ,
        "GOODPUT_DIR": str(tmp_path / "pages"),
        "GOODPUT_RUN": "gpu",
        "RANK": "0",
        "WORLD_SIZE": "1",
    }
    script = str(SUPPORT / "integration" / "gpu_rank.py")
    options = [
        "--listen",
        "127.0.0.1:0",
        "--interval",
        "0.2",
        "--gpu-driver",
        "nvml",
        "--gpu-interval",
        "0.2",
    ]
    log = tmp_path / "node.log"
    with open(log, "wb") as output:
        node = subprocess.Popen(
            [sys.executable, "-m", "goodput", "node", *options],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environ,
        )
    rank = subprocess.Popen([sys.executable, script, str(tmp_path)], env=environ)
    try:
        servers.wait_until(lambda: re.search(r"http://[\d.:]+", log.read_text()), 60, "the agent to start")
        servers.wait_until(lambda: (tmp_path / "uuid").exists(), 120, "the training to start")
        agent, uuid = re.search(r"http://[\d.:]+", log.read_text()).group(), (tmp_path / "uuid").read_text()

        def seen():
            text = httpx.get(f"{agent}/metrics", trust_env=False).text
            spent = by_phase(text, "goodput_phase_seconds_total", clock="host", run="gpu")
            return text if min(spent.get("loader", 0), spent.get("forward", 0)) > SECONDS_SEEN else None

        text = servers.wait_until(seen, 120, "the phases to pass")
    finally:
        ended(rank)
        ended(node)
    spent = by_phase(text, "goodput_gpu_phase_seconds_total", gpu=uuid)
    used = by_phase(text, "goodput_gpu_activity_seconds_total", gpu=uuid, unit="utilization")
    shares = {phase: used.get(phase, 0.0) / seconds for phase, seconds in spent.items() if seconds > 1}
    print(shares)
    assert shares["forward"] > 0.7 and shares["backward"] > 0.7
    assert shares["loader"] < 0.4
    joules = by_phase(text, "goodput_gpu_phase_energy_joules_total", gpu=uuid)
    watts = {
        phase: joules[phase] / seconds for phase, seconds in spent.items() if phase in joules and seconds > 1
    }
    assert watts["backward"] > 1.3 * watts["loader"]
