"""A real trace of the installed PyTorch on the CPU: a training loop with marks, a loader that sleeps, and stacks."""

import json
import subprocess
import sys

import pytest
from support.installed import need

from goodput.trace import analyze

pytestmark = pytest.mark.torch
need("torch")
SLEEP_SECONDS, BATCH = 0.004, 4
SCRIPT = f"""
import sys, time, torch
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 40
    def __getitem__(self, i):
        time.sleep({SLEEP_SECONDS})
        return torch.full((32,), float(i))

torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for stack in (False, True):
    walls = []
    def ready(it):
        it.export_chrome_trace(sys.argv[1 + stack])
    with profile(activities=[ProfilerActivity.CPU], with_stack=stack, on_trace_ready=ready,
                 schedule=schedule(wait=1, warmup=1, active=4, repeat=1)) as it:
        for batch in DataLoader(Slow(), batch_size={BATCH}):
            model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            it.step()
"""


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    folder = tmp_path_factory.mktemp("torch")
    paths = [folder / "plain.json", folder / "stack.json.gz"]
    subprocess.run([sys.executable, "-c", SCRIPT, *map(str, paths)], check=True, timeout=300)
    return paths


@pytest.mark.parametrize("which", [0, 1], ids=["plain", "with stacks, packed"])
def test_real_loop_closes_and_shows_its_loader(traces, which):
    document = analyze([traces[which]])
    (device,) = document["ranks"][0]["devices"]
    assert device["device"] == "CPU" and device["steps_from"] == "ProfilerStep"
    assert [step["name"] for step in device["steps"]] == [f"ProfilerStep#{i}" for i in range(2, 6)]
    assert document["ranks"][0]["problems"] == []
    for step in device["steps"]:
        assert sum(step["states_ns"].values()) == step["wall_ns"]
        assert step["states_ns"]["loader"] >= BATCH * SLEEP_SECONDS * 1e9
        assert step["states_ns"]["compute"] > 0
        assert step["states_ns"]["communication"] == step["states_ns"]["copy"] == 0
    cause = document["cause"]
    assert cause["state"] == "loader" and cause["share"] > 0.5
    assert any(row["name"] == "aten::addmm" and row["count"] == 8 for row in device["top"])


def test_torch_still_writes_the_expected_names(traces):
    events = json.loads(traces[0].read_text())["traceEvents"]
    seen = {(e.get("cat"), e["name"].split("#")[0]) for e in events if e.get("ph") == "X"}
    assert ("user_annotation", "ProfilerStep") in seen
    assert ("user_annotation", "enumerate(DataLoader)") in seen
    assert ("user_annotation", "Optimizer.step") in seen
    assert ("cpu_op", "aten::addmm") in seen
