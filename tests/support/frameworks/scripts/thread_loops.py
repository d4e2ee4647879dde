"""Trains where batches are fetched, evaluations run or training moves in other threads, for test_thread_loops.py.

argv is the case and the file to write: what the loop did (`steps`, and `waited`, the least seconds for which it waited for
batches) and what its page shows.
"""

import io
import json
import queue
import sys
import threading
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import goodput.auto
from goodput.rank_page.reader import Reader

CASES = {}
STEPS, PAUSE_SECONDS = 6, 0.01


def case(function):
    CASES[function.__name__] = function
    return function


class Samples(Dataset):
    """Samples that are made only once `allowed` was released for each of them, if it is given."""

    def __init__(self, allowed=None):
        self.allowed = allowed

    def __len__(self):
        return STEPS

    def __getitem__(self, index):
        if self.allowed is not None:
            self.allowed.acquire()
            time.sleep(PAUSE_SECONDS)
        return torch.randn(8), torch.randn(1)


def parts():
    model = nn.Linear(8, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def one_step(model, optimizer, x, y):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()


def train(model, optimizer, loader=None) -> int:
    steps = 0
    for x, y in DataLoader(Samples()) if loader is None else loader:
        one_step(model, optimizer, x, y)
        steps += 1
    return steps


def in_thread(function, *arguments):
    """What a function returns in a thread of its own."""
    found = []
    thread = threading.Thread(target=lambda: found.append(function(*arguments)))
    thread.start()
    thread.join()
    return found[0]


def read_ahead(iterable):
    """The items of an iterable, which another thread takes from it."""
    items = queue.Queue()

    def read():
        for item in iterable:
            items.put(item)
        items.put(None)

    threading.Thread(target=read, daemon=True).start()
    return iter(items.get, None)


def train_on_read_ahead(loaders, allowed=()) -> int:
    """Train on batches of loaders that are made while this thread waits for them: after each step."""
    (model, optimizer), steps = parts(), 0
    for each in allowed:
        each.release()
    for (x, y), *_ in zip(*map(read_ahead, loaders), strict=True):
        one_step(model, optimizer, x, y)
        steps += 1
        for each in allowed:
            each.release()
    return steps


@case
def batches_read_by_another_thread():
    """That thread opens the page."""
    allowed = threading.Semaphore(0)
    steps = train_on_read_ahead([DataLoader(Samples(allowed))], [allowed])
    return {"steps": steps, "waited": (STEPS - 1) * PAUSE_SECONDS}


@case
def batches_read_by_another_thread_after_start():
    goodput.start()
    return batches_read_by_another_thread()


@case
def iterator_made_in_the_main_thread():
    goodput.start()
    allowed = threading.Semaphore(0)
    steps = train_on_read_ahead([iter(DataLoader(Samples(allowed)))], [allowed])
    return {"steps": steps, "waited": (STEPS - 1) * PAUSE_SECONDS}


@case
def two_loaders_read_by_two_threads():
    allowed = threading.Semaphore(0), threading.Semaphore(0)
    steps = train_on_read_ahead([DataLoader(Samples(each)) for each in allowed], allowed)
    return {"steps": steps, "waited": (STEPS - 1) * PAUSE_SECONDS}


@case
def batches_read_long_before():
    """The training thread waits for none of them: its pauses are something else."""
    goodput.start()
    batches, (model, optimizer) = in_thread(list, DataLoader(Samples())), parts()
    for x, y in batches:
        time.sleep(PAUSE_SECONDS)
        one_step(model, optimizer, x, y)
    return {"steps": STEPS, "waited": 0.0, "none": (STEPS - 1) * PAUSE_SECONDS, "loader": 0}


@case
def evaluation_in_another_thread_first():
    (model, optimizer), other, go = parts(), nn.Linear(8, 1), threading.Event()
    started = threading.Event()

    def evaluate():
        with torch.no_grad():
            for x, _ in DataLoader(Samples()):
                other(x)
            started.set()
            go.wait()
            for x, _ in DataLoader(Samples()):
                other(x)

    thread = threading.Thread(target=evaluate)
    thread.start()
    started.wait()
    steps = train(model, optimizer)
    go.set()
    thread.join()
    return {"steps": steps}


@case
def checkpoints_in_another_thread():
    model, optimizer = parts()
    in_thread(torch.save, model.state_dict(), io.BytesIO())
    steps = train(model, optimizer)
    in_thread(torch.save, model.state_dict(), io.BytesIO())
    return {"steps": steps + train(model, optimizer)}


@case
def training_moves_to_other_threads():
    model, optimizer = parts()
    steps = train(model, optimizer)
    return {"steps": steps + in_thread(train, model, optimizer) + in_thread(train, model, optimizer)}


@case
def training_moves_to_a_thread_and_back():
    model, optimizer = parts()
    steps = in_thread(train, model, optimizer)
    return {"steps": steps + in_thread(train, model, optimizer) + train(model, optimizer)}


@case
def another_model_is_trained_in_a_thread():
    """The first step there might be one of two trainings at the same time."""
    model, optimizer = parts()
    steps = train(model, optimizer)
    return {"steps": steps + in_thread(train, *parts()), "steps_off": 1}


@case
def main_thread_only_waits():
    goodput.start()
    return {"steps": in_thread(train, *parts())}


@case
def main_thread_fetches_for_a_thread():
    model, optimizer = parts()
    goodput.start()
    for x, y in DataLoader(Samples()):
        in_thread(one_step, model, optimizer, x, y)
    return {"steps": STEPS}


@case
def phase_by_hand_in_the_reading_thread():
    """It stays in the background."""
    model, optimizer = parts()

    def prepared():
        for batch in DataLoader(Samples()):
            with goodput.phase("prepare", state="loader"):
                time.sleep(0.001)
            yield batch

    goodput.start()
    return {"steps": train(model, optimizer, read_ahead(prepared())), "prepare": 0}


def main() -> None:
    torch.set_num_threads(1)
    expected = CASES[sys.argv[1]]()
    recorder, writer = goodput._session.recorder, goodput._session.writer
    recorder.charge(time.perf_counter_ns())
    found = Reader(writer.path, writer.fd).snapshot()
    report = {
        "expected": expected,
        "steps": found.steps_done,
        "totals": dict(zip(found.phases, found.totals, strict=False)),
        "drops": sum(found.drops.values()),
        "off": found.last_ns - found.identity["start_mono_ns"] - sum(found.totals),
    }
    with open(sys.argv[2], "w") as file:
        json.dump(report, file)


if __name__ == "__main__":
    main()
