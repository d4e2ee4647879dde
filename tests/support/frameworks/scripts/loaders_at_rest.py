"""Loaders while the overhead budget lets steps rest, for test_loaders_at_rest.py: argv is the directory."""

import time

import support.frameworks.framework_runs as runs
import torch

import goodput
import goodput.auto
from goodput.sdk.automatic.trainer_progress import training

QUICK, SLOW, SLOW_SECONDS = 1500, 40, 0.02
ROWS = [(torch.randn(4), torch.randn(1)) for _ in range(8)]


class Planted(torch.utils.data.Dataset):
    """QUICK rows, then SLOW ones that sleep; every 300th of the quick ones sleeps, too."""

    def __init__(self):
        self.slept_seconds = 0.0

    def __len__(self):
        return QUICK + SLOW

    def __getitem__(self, index):
        if index >= QUICK or index % 300 == 299:
            began = time.perf_counter()
            time.sleep(SLOW_SECONDS)
            self.slept_seconds += time.perf_counter() - began
        return ROWS[index % len(ROWS)]


class Nested(torch.utils.data.Dataset):
    """Each row is the sum of a loader's."""

    def __len__(self):
        return 30

    def __getitem__(self, index):
        total = sum(x.sum() for x, _ in torch.utils.data.DataLoader(ROWS, 2))
        return torch.full((4,), float(total)), ROWS[0][1]


class Streamed(torch.utils.data.IterableDataset):
    """The batches of a loader with a worker, whose iterator was made before."""

    def __init__(self):
        self.iterator = iter(torch.utils.data.DataLoader(ROWS * 100, 8, num_workers=1))

    def __iter__(self):
        return self.iterator


def step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()


def trained():
    model = torch.nn.Linear(4, 1)
    return model, torch.optim.SGD(model.parameters(), 0.01)


def to_rest(model, optimizer):
    """Train until steps rest; how many there were."""
    recorder, steps = goodput._session.recorder, 0
    while not 4 < recorder.rested < recorder.resting - 50:
        step(model, optimizer, ROWS[0])
        steps += 1
        assert steps < 5000, "they never rest"
    return steps


def another_optimizer():
    """Steps until those of one that was there all along are seen; steps of a new one."""
    recorder, old, other = goodput._session.recorder, trained(), trained()
    goodput.start(run="another")
    to_rest(*old)
    until = time.perf_counter() + 30
    while recorder.anchor() is not other[1] and time.perf_counter() < until:
        step(*other, ROWS[0])
    seen = recorder.anchor() is other[1]
    to_rest(*other)
    before, new = recorder.steps + recorder.rested, trained()
    for _ in range(200):
        step(*new, ROWS[0])
    goodput.stop()
    return {"seen": seen, "before": before}


def trainer_at_rest():
    """A trainer that counts its steps; it is broken off while they rest, and begins again."""
    recorder, now = goodput._session.recorder, training(goodput._session.automatic)
    goodput.start(run="trainer")
    model, optimizer = trained()
    now.begins(0)
    steps = to_rest(model, optimizer)
    now.stepped(steps)
    for _ in range(20):
        step(model, optimizer, ROWS[0])
        steps += 1
        now.stepped(steps)
    counts = now.counts
    now.breaks(ValueError())
    now.begins(0)
    entered = recorder.steps
    goodput.stop()
    return {"counts": counts, "entered": entered, "steps": steps}


def resumed_at_rest():
    goodput.start(run="resumed")
    model, optimizer = trained()
    steps = to_rest(model, optimizer)
    goodput.resumed(steps - 3)
    goodput.stop()
    return steps


def iterable_at_rest():
    """Seconds that the batches of an iterable took in which a loader is."""
    took = 0.0

    def made():
        nonlocal took
        for batch in torch.utils.data.DataLoader(ROWS * 200, 1):
            began = time.perf_counter()
            while time.perf_counter() < began + 0.0003:
                pass
            took += time.perf_counter() - began
            yield batch

    goodput.start(run="iterable")
    model, optimizer = trained()
    to_rest(model, optimizer)
    for batch in goodput.loader(made()):
        step(model, optimizer, batch)
    goodput.stop()
    return took


def accumulated():
    """A loader for each epoch, of which none ends with a step."""
    goodput.start(run="accumulated")
    model, optimizer = trained()
    batches = 0
    for _ in range(5):
        loader = torch.utils.data.DataLoader(ROWS * 5, 4)  # 10 batches.
        for x, y in loader:
            torch.nn.functional.mse_loss(model(x), y).backward()
            batches += 1
            if batches % 4 == 0:
                optimizer.step()
    goodput.stop()


def streamed():
    goodput.start(run="streamed")
    model, optimizer = trained()
    for _ in range(4):
        step(model, optimizer, ROWS[0])
    for batch in torch.utils.data.DataLoader(Streamed(), None):
        step(model, optimizer, batch)
    goodput.stop()


def main():
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    goodput.start(run="resting")
    planted, waited = Planted(), 0.0
    iterator = iter(torch.utils.data.DataLoader(planted, 1))
    while True:
        began = time.perf_counter()
        batch = next(iterator, None)
        waited += time.perf_counter() - began
        if batch is None:
            break
        step(model, optimizer, batch)
    goodput.stop()
    goodput.start(run="nested")
    for batch in torch.utils.data.DataLoader(Nested(), 3):
        step(model, optimizer, batch)
    goodput.stop()
    goodput.start(run="by turns")
    first, second = (torch.utils.data.DataLoader(ROWS, 2) for _ in range(2))
    for _ in range(4):
        for each in (first, second):
            for batch in each:
                step(model, optimizer, batch)
    goodput.stop()
    accumulated()
    streamed()
    told = {"another": another_optimizer(), "trainer": trainer_at_rest(), "resumed": resumed_at_rest()}
    told["iterable"] = iterable_at_rest()
    runs.tell(waited=waited, slept=planted.slept_seconds, steps=len(planted), **told)


if __name__ == "__main__":
    main()
