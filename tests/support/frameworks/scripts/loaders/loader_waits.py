"""Loops over loaders of several kinds, for test_loader_waits.py: argv is the directory."""

import time

import support.frameworks.script_helpers as helpers
import torch

import goodput
import goodput.auto
from goodput.sdk.automatic.trainer_progress import progress_of

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


def settle(model, optimizer):
    """Train until phases are off, where the budget is too small for them, else some steps; returns their number."""
    recorder, steps = goodput._session.recorder, 0
    while steps < 100 or (goodput._session.automatic.budget.share < 0.001 and not recorder.phases_off):
        step(model, optimizer, ROWS[0])
        steps += 1
        assert steps < 5000, "phases are never switched off"
    return steps


def another_optimizer():
    """Steps until those of one that was there all along are seen; steps of a new one."""
    session, old, other = goodput._session, trained(), trained()
    recorder, training = session.recorder, session.automatic.training
    goodput.start(run="another")
    settle(*old)
    until = time.perf_counter() + 30
    while training.anchor() is not other[1] and time.perf_counter() < until:
        step(*other, ROWS[0])
    seen = training.anchor() is other[1]
    settle(*other)
    before, new = recorder.steps, trained()
    for _ in range(200):
        step(*new, ROWS[0])
    goodput.stop()
    return {"seen": seen, "before": before}


def trainer():
    """A trainer that counts its steps; it is broken off, and begins again."""
    recorder, now = goodput._session.recorder, progress_of(goodput._session.automatic)
    goodput.start(run="trainer")
    model, optimizer = trained()
    now.begin(0)
    steps = settle(model, optimizer)
    now.steps_done(steps)
    for _ in range(20):
        step(model, optimizer, ROWS[0])
        steps += 1
        now.steps_done(steps)
    counts = now.auto.trainer_counts
    now.abort(ValueError())
    now.begin(0)
    recorded = recorder.steps
    goodput.stop()
    return {"counts": counts, "recorded": recorded, "steps": steps}


def resumed():
    goodput.start(run="resumed")
    model, optimizer = trained()
    steps = settle(model, optimizer)
    goodput.resumed(steps - 3)
    goodput.stop()
    return steps


def evaluated():
    """An evaluation of 0.2 s among the steps."""
    goodput.start(run="evaluated")
    model, optimizer = trained()
    settle(model, optimizer)
    model.eval()
    with torch.no_grad():
        model(ROWS[0][0])
        time.sleep(0.2)
    model.train()
    for _ in range(10):
        step(model, optimizer, ROWS[0])
    goodput.stop()


def iterable():
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
    settle(model, optimizer)
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
    goodput.start(run="planted")
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
    evaluated()
    reported = {
        "another": another_optimizer(),
        "trainer": trainer(),
        "resumed": resumed(),
        "iterable": iterable(),
    }
    helpers.print_result(waited=waited, slept=planted.slept_seconds, steps=len(planted), **reported)


if __name__ == "__main__":
    main()
