"""A rank that trains on a real GPU: waiting for data and computing by turns, by real time.

gpu_rank.py DIRECTORY    rank, world size and run come from the environment

It waits for the device inside its phases, so that what a phase used is used within it. It ends when DIRECTORY has a
file `stop`, and writes the GPU's identity into the file `uuid` before it begins.
"""

import sys
import time
from pathlib import Path

import torch

import goodput

WAIT_SECONDS, WORK_SECONDS = 3.0, 6.0  # long beside the second over which a driver averages


def batches(folder: Path):
    data = torch.randn(4096, 4096, device="cuda")
    while not (folder / "stop").exists():
        time.sleep(WAIT_SECONDS)
        yield data


def until(end: float, work) -> None:
    while time.perf_counter() < end:
        work()
        torch.cuda.synchronize()


def main() -> None:
    folder = Path(sys.argv[1])
    text = str(torch.cuda.get_device_properties(0).uuid)
    uuid = text if text.startswith("GPU-") else f"GPU-{text}"
    model = torch.nn.Sequential(*(torch.nn.Linear(4096, 4096) for _ in range(8))).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    model(torch.randn(4096, 4096, device="cuda")).sum().backward()
    torch.cuda.synchronize()
    goodput.start(device=torch.cuda.get_device_name(), device_uuid=uuid)
    (folder / "uuid").write_text(uuid)
    for batch in goodput.steps(batches(folder)):
        with goodput.phase("forward"):
            until(time.perf_counter() + WORK_SECONDS / 2, lambda batch=batch: model(batch))
        with goodput.phase("backward"):
            until(time.perf_counter() + WORK_SECONDS / 2, lambda batch=batch: model(batch).sum().backward())
        with goodput.phase("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
            torch.cuda.synchronize()


if __name__ == "__main__":
    main()
