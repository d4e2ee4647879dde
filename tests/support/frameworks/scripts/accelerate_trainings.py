"""Trainings with Accelerate under goodput.auto, for test_accelerate.py: argv is the directory."""

import sys
import time

import support.frameworks.script_helpers as helpers
import torch
from accelerate import Accelerator
from support.core_wait import CoreWait

DIRECTORY = sys.argv[1]
DataLoader = torch.utils.data.DataLoader


def items(count):
    made = torch.Generator().manual_seed(1)
    return [(torch.randn(16, generator=made), torch.randn(4, generator=made)) for _ in range(count)]


def train(data, micro_batches=24, resume=False, saves=False, result=None):
    """12 optimizer steps of two batches, an evaluation in the middle, checkpoints after 4, 8 and 12."""
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    net = torch.nn.Sequential(torch.nn.Linear(16, 128), torch.nn.ReLU(), torch.nn.Linear(128, 4))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    model, optimizer, loader = accelerator.prepare(net, optimizer, DataLoader(data, 4))
    valid = accelerator.prepare(DataLoader(helpers.Slow(items(16), 0.004), 4))
    if resume:
        accelerator.load_state(f"{DIRECTORY}/12")
    for number, (x, y) in enumerate(loader, 1):
        with accelerator.accumulate(model):
            accelerator.backward(torch.nn.functional.mse_loss(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
        if number == 12 and result is not None:
            began = time.perf_counter()
            model.eval()
            with torch.no_grad():
                for batch in valid:
                    model(batch[0])
            model.train()
            result["evaluation"] = time.perf_counter() - began
        if saves and number % 8 == 0:
            began = time.perf_counter()
            accelerator.save_state(f"{DIRECTORY}/{number // 2}")
            result["checkpoint"] = result.get("checkpoint", 0.0) + time.perf_counter() - began
        if number == micro_batches:
            break
    return helpers.digest(net)


def copies():
    """A prepared loader copies inside its own iteration. Here to the device `meta`, since this is without one."""
    loader = Accelerator(cpu=True).prepare(DataLoader(items(8), 4))
    loader.device = torch.device("meta")
    for _ in loader:
        pass


def main():
    result = {"bare": train(items(100))}
    # Copies are watched where PyTorch was built for a device.
    torch.version.cuda = torch.version.cuda or "12.0"
    import goodput
    import goodput.auto

    goodput.start(run="same")
    result["measured"] = train(items(100))
    goodput.stop()
    data, waited = helpers.Slow(items(100)), CoreWait()
    goodput.start(run="planted")
    train(data, saves=True, result=result)
    goodput.stop()
    result["loader"] = data.spent_seconds
    for micro_batches in (8, 12):
        goodput.start(run="planted")
        train(items(100), micro_batches, resume=True)
        goodput.stop()
    result["core_wait"] = waited.seconds()
    goodput.start(run="copies")
    copies()
    goodput.stop()
    helpers.print_result(**result)


if __name__ == "__main__":
    main()
