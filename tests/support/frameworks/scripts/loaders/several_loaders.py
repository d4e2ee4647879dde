"""Loops with more than one loader under goodput.auto, for test_several_loaders.py: argv is the directory."""

import support.frameworks.script_helpers as helpers
import torch

import goodput
import goodput.auto

ROWS = [(torch.randn(4), torch.randn(1)) for _ in range(32)]


def loader():
    return torch.utils.data.DataLoader(helpers.Slow(ROWS), 8)


def step(model, optimizer, x, y):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()


def evaluate(model, loader):
    model.eval()
    for x, _ in loader:
        with torch.no_grad():
            model(x)
    model.train()


def seconds(*loaders) -> float:
    return sum(each.dataset.spent_seconds for each in loaders)


def main():
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    first, second, third, fourth = (loader() for _ in range(4))
    valid = loader()
    taken = 0.0  # by the first batch of the second loader, which may be taken for an evaluation
    goodput.start(run="one after the other")
    for each in (first, second):
        for _ in range(2):
            for x, y in each:
                taken = taken or seconds(second)
                step(model, optimizer, x, y)
            evaluate(model, valid)
    goodput.stop()
    goodput.start(run="side by side")
    for _ in range(3):
        for (x, y), _ in zip(third, fourth, strict=True):
            step(model, optimizer, x, y)
    goodput.stop()
    helpers.print_result(
        after=seconds(first, second) - taken,
        valid=seconds(valid),
        beside=seconds(third, fourth),
    )


if __name__ == "__main__":
    main()
