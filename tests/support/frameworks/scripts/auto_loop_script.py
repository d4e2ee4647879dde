"""Training loops that do unusual things, with goodput.auto; run by test_auto_loop.py with warnings as errors.

In: the file to write to. Out: JSON: by loop what it says itself (steps done, seconds of evaluation, steps of its
checkpoints), and what the page says of it: steps, ns per phase, events, drops, and whether the time closes.
"""

import copy
import gc
import io
import json
import os
import signal
import sys
import tempfile
import threading
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import goodput.auto
from goodput.rank_page.reader import Reader

CASES = {}
PAUSE_SECONDS = 0.01
TURNS = 150  # interrupts


def case(function):
    CASES[function.__name__] = function
    return function


class Slow(nn.Module):
    """A model that takes time, and raises where it is told to."""

    def __init__(self, fails=()):
        super().__init__()
        self.layer, self.fails, self.calls = nn.Linear(8, 1), fails, 0

    def forward(self, x):
        self.calls += 1
        time.sleep(PAUSE_SECONDS / 4)
        if self.calls in self.fails:
            raise RuntimeError("out of memory, say")
        return self.layer(x)


def data(rows: int = 16) -> TensorDataset:
    return TensorDataset(torch.randn(rows, 8), torch.randn(rows, 1))


def batches(rows: int = 16, **others) -> DataLoader:
    return DataLoader(data(rows), batch_size=4, **others)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.01)


def one_step(model, optimizer, x, y) -> None:
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()


def train(model=None, optimizer=None, loader=None) -> int:
    model = Slow() if model is None else model
    optimizer = sgd(model) if optimizer is None else optimizer
    steps = 0
    for x, y in batches() if loader is None else loader:
        one_step(model, optimizer, x, y)
        steps += 1
    return steps


def pause(times: int = 1) -> float:
    began = time.perf_counter()
    time.sleep(times * PAUSE_SECONDS)
    return time.perf_counter() - began


# -- exceptions


def failing(act, fails=(2, 3)) -> dict:
    """Train, calling `act(number, model, optimizer, x, y)`, which may raise."""
    model = Slow()
    optimizer, steps = sgd(model), 0
    for number, (x, y) in enumerate(batches(24)):
        try:
            act(number in fails, model, optimizer, x, y)
            steps += 1
        except RuntimeError:
            optimizer.zero_grad()
    return {"steps": steps}


@case
def raised_in_forward():
    def act(fails, model, optimizer, x, y):
        model.fails = (model.calls + 1,) if fails else ()
        one_step(model, optimizer, x, y)

    return failing(act)


@case
def raised_in_backward():
    def act(fails, model, optimizer, x, y):
        def raises(grad):
            if fails:
                raise RuntimeError
            return grad

        handle = model.layer.weight.register_hook(raises)
        try:
            one_step(model, optimizer, x, y)
        finally:
            handle.remove()

    return failing(act)


@case
def raised_in_the_optimizer():
    class Fails(torch.optim.SGD):
        fails = False

        def step(self, closure=None):
            if self.fails:
                raise RuntimeError
            return super().step(closure)

    model = Slow()
    train()  # SGD's own step has hooks then: that of a subclass calls them twice.
    optimizer, steps = Fails(model.parameters(), lr=0.1), 0
    gc.collect()
    for number, (x, y) in enumerate(batches(24)):
        optimizer.fails = number in (2, 3)
        try:
            one_step(model, optimizer, x, y)
            steps += 1
        except RuntimeError:
            optimizer.zero_grad()
    return {"steps": steps + 4}


@case
def raised_in_an_optimizer_that_is_replaced():
    """No loader tells that the step of the first one has ended; its phase stays not open."""

    class Fails(torch.optim.SGD):
        def step(self, closure=None):
            raise RuntimeError

    model, (x, y) = Slow(), data(4).tensors
    try:
        one_step(model, Fails(model.parameters(), lr=0.1), x, y)
    except RuntimeError:
        pass
    gc.collect()
    optimizer, waited = sgd(model), 0.0
    for _ in range(4):
        one_step(model, optimizer, x, y)
        waited += pause()
    return {"steps": 4, "least": {"none": waited}}


@case
def retried_with_smaller_batches():
    model = Slow(fails=(2, 5))
    optimizer, steps = sgd(model), 0
    for x, y in batches():
        try:
            one_step(model, optimizer, x, y)
        except RuntimeError:
            optimizer.zero_grad()
            for at in (0, 2):
                nn.functional.mse_loss(model(x[at : at + 2]), y[at : at + 2]).backward()
            optimizer.step()
            optimizer.zero_grad()
        steps += 1
    return {"steps": steps}


class Failing(Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        if index == 9:
            raise RuntimeError("no such sample")
        return torch.randn(8), torch.randn(1)


@case
def raised_in_a_worker():
    steps = 0
    model = Slow()
    optimizer = sgd(model)
    for workers in (1, 0):
        try:
            for x, y in DataLoader(Failing(), batch_size=4, num_workers=workers):
                one_step(model, optimizer, x, y)
                steps += 1
        except RuntimeError:
            pass
    return {"steps": steps + train(model, optimizer)}


@case
def interrupted_at_any_point():
    """Interrupts come at random; each reaches the loop, and the time closes all the same."""
    return interrupted_by(KeyboardInterrupt)


@case
def timed_out_at_any_point():
    """As a time limit does; an exception that our own code would otherwise forgive."""
    return interrupted_by(TimeoutError)


def interrupted_by(exception):
    model = nn.Linear(8, 1)
    optimizer = sgd(model)
    sent = caught = steps = 0

    def interrupt(_signal, _frame):
        nonlocal sent
        sent += 1
        raise exception

    old = signal.signal(signal.SIGALRM, interrupt)
    loader, (x, y) = batches(8), data(4).tensors
    optimizer.register_step_post_hook(lambda *_: count())

    def count():
        nonlocal steps
        steps += 1

    # Python loses what a handler raises inside the callback of a weak reference, torch's for example, and says so.
    sys.unraisablehook, printed = lambda _lost: None, sys.unraisablehook
    for turn in range(TURNS):
        try:
            signal.setitimer(signal.ITIMER_REAL, 50e-6 + 4e-6 * turn)
            until = time.perf_counter() + 0.5
            while time.perf_counter() < until:
                if turn % 2:
                    for a, b in loader:
                        one_step(model, optimizer, a, b)
                    model.eval()
                    with torch.no_grad():
                        model(x)
                    model.train()
                one_step(model, optimizer, x, y)
        except exception:
            caught += 1
            torch.set_grad_enabled(True)  # torch's own context managers may have been interrupted.
    sys.unraisablehook = printed
    signal.signal(signal.SIGALRM, old)
    one_step(model, optimizer, x, y)
    # torch forgives some exceptions in code of its own too.
    lost = 4 if exception is KeyboardInterrupt else 8
    assert sent == TURNS and caught >= TURNS - lost, (sent, caught)
    return {"steps": steps, "steps_off": TURNS // 10}


# -- where a loop may run


@case
def forked():
    model = Slow()
    optimizer = sgd(model)
    train(model, optimizer)
    child = os.fork()
    if not child:
        status = 1
        try:
            train(model, optimizer)
            train()
            torch.save(model.state_dict(), io.BytesIO())
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    return {"steps": 4 + train(model, optimizer)}


@case
def executed_text():
    found = {"one_step": one_step, "Slow": Slow, "sgd": sgd, "batches": batches}
    exec(
        "model = Slow(); optimizer = sgd(model)\nfor x, y in batches(): one_step(model, optimizer, x, y)",
        found,
    )
    return {"steps": 4}


@case
def inside_a_class_and_a_generator():
    class Trainer:
        def __init__(self):
            self.model = Slow()
            self.optimizer = sgd(self.model)

        def losses(self):
            for x, _y in batches():
                loss = self.model(x).mean()
                loss.backward()
                self.optimizer.step()
                yield loss.item()

    return {"steps": len(list(Trainer().losses()))}


@case
def two_models_one_after_the_other():
    steps = train()
    gc.collect()
    return {"steps": steps + train()}


@case
def in_memory():
    model = Slow()
    optimizer, (x, y) = sgd(model), data(4).tensors
    for _ in range(5):
        one_step(model, optimizer, x, y)
    return {"steps": 5, "least": {"forward": 5 * PAUSE_SECONDS / 4}}


@case
def another_thread_beside():
    """A thread that evaluates and saves meanwhile is not part of the account."""
    model, done = Slow(), threading.Event()

    def beside():
        other = Slow()
        while not done.is_set():
            with torch.no_grad():
                other(torch.randn(4, 8))
            torch.save(other.state_dict(), io.BytesIO())
            for _ in batches():
                pass

    thread = threading.Thread(target=beside)
    thread.start()
    steps = train(model)
    done.set()
    thread.join()
    return {"steps": steps, "evaluation_seconds": 0}


# -- evaluation


def evaluated(evaluate, model=None) -> dict:
    """Two epochs, each with an evaluation at its end."""
    model = Slow() if model is None else model
    optimizer, steps, seconds = sgd(model), 0, 0.0
    loader, held_out = batches(), batches(12)
    for _ in range(2):
        steps += train(model, optimizer, loader)
        began = time.perf_counter()
        evaluate(model, held_out)
        seconds += time.perf_counter() - began
    return {"steps": steps, "evaluation_seconds": seconds}


@case
def evaluation_by_eval_and_no_grad():
    def evaluate(model, loader):
        model.eval()
        with torch.no_grad():
            for x, _y in loader:
                model(x).sum().item()
                pause()
        model.train()

    return evaluated(evaluate)


@case
def evaluation_by_no_grad_and_another_loader():
    def evaluate(model, loader):
        with torch.no_grad():
            for x, _y in loader:
                model(x)
                pause()

    return evaluated(evaluate)


@case
def evaluation_by_inference_mode():
    def evaluate(model, loader):
        with torch.inference_mode():
            for x, _y in loader:
                model(x)
                pause()

    return evaluated(evaluate)


@case
def evaluation_without_a_loader():
    def evaluate(model, _loader):
        x = torch.randn(4, 8)
        model.eval()
        with torch.no_grad():
            for _ in range(3):
                model(x)
                pause()
        model.train()

    return evaluated(evaluate)


@case
def evaluation_of_an_average():
    """The model that is evaluated, and called under eval(), is a copy of the one that is trained."""
    model = Slow()
    average = torch.optim.swa_utils.AveragedModel(model)

    def evaluate(_model, loader):
        average.update_parameters(model)
        average.eval()
        with torch.no_grad():
            for x, _y in loader:
                average(x)
                pause()

    return evaluated(evaluate, model)


@case
def evaluation_inside_an_epoch():
    model = Slow()
    optimizer, seconds, steps = sgd(model), 0.0, 0
    held_out = batches(8)
    for number, (x, y) in enumerate(batches(32)):
        one_step(model, optimizer, x, y)
        steps += 1
        if number % 3 == 2:
            began = time.perf_counter()
            model.eval()
            with torch.no_grad():
                for a, _b in held_out:
                    model(a)
                    pause()
            model.train()
            seconds += time.perf_counter() - began
    return {"steps": steps, "evaluation_seconds": seconds}


@case
def a_teacher_inside_the_step():
    teacher, model = Slow().eval(), Slow()
    optimizer, steps = sgd(model), 0
    for x, _y in batches():
        with torch.no_grad():
            wanted = teacher(x)
        one_step(model, optimizer, x, wanted)
        steps += 1
    return {"steps": steps, "evaluation_seconds": 0, "least": {"forward": 2 * steps * PAUSE_SECONDS / 4}}


@case
def gradients_in_eval_mode():
    """Training with batch norm frozen: the model is in eval mode all the time."""
    model = Slow().eval()
    return {"steps": train(model), "evaluation_seconds": 0}


@case
def eval_mode_between_steps():
    """`model.eval()` and `.train()` at each step, as reinforcement learning does, with gradients on meanwhile."""
    model = Slow()
    optimizer, steps = sgd(model), 0
    for x, y in batches():
        model.eval()
        model.train()
        one_step(model, optimizer, x, y)
        steps += 1
    return {"steps": steps}


# -- checkpoints


def saved(save) -> dict:
    """A loop that saves after its third step; index 2 is the last one done then."""
    model = Slow()
    optimizer, steps = torch.optim.Adam(model.parameters()), 0
    recorder = goodput._session.recorder
    for x, y in batches():
        one_step(model, optimizer, x, y)
        steps += 1
        if steps == 3:
            at = recorder.step_next - 1
            with tempfile.TemporaryDirectory() as directory:
                save(model, optimizer, os.path.join(directory, "saved.pt"))
    return {"steps": steps, "at": at}


@case
def a_state_dict_saved():
    found = saved(lambda model, optimizer, path: torch.save(model.state_dict(), path))
    return {**found, "events": [["checkpoint_begun", found["at"]], ["checkpoint_committed", found["at"]]]}


@case
def all_in_one_file_saved():
    def save(model, optimizer, path):
        with open(path, "wb") as file:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 3}, file)

    found = saved(save)
    return {**found, "events": [["checkpoint_begun", found["at"]], ["checkpoint_committed", found["at"]]]}


@case
def a_model_saved():
    found = saved(lambda model, optimizer, path: torch.save(model, path))
    return {**found, "events": [["checkpoint_begun", found["at"]], ["checkpoint_committed", found["at"]]]}


@case
def metrics_saved():
    found = saved(lambda model, optimizer, path: torch.save({"loss": torch.ones(3), "epoch": 1}, path))
    return {**found, "events": []}


@case
def saved_to_memory():
    found = saved(lambda model, optimizer, path: torch.save(model.state_dict(), io.BytesIO()))
    return {**found, "events": [["checkpoint_begun", found["at"]]]}


@case
def a_save_that_fails():
    def save(model, optimizer, path):
        try:
            torch.save({**model.state_dict(), "of": lambda: 0}, path)
        except Exception:
            pass

    found = saved(save)
    return {**found, "events": [["checkpoint_begun", found["at"]]]}


@case
def saved_by_safetensors():
    import safetensors.torch

    found = saved(lambda model, optimizer, path: safetensors.torch.save_file(model.state_dict(), path))
    return {**found, "events": [["checkpoint_begun", found["at"]], ["checkpoint_committed", found["at"]]]}


@case
def the_user_gives_the_steps():
    """goodput.steps and goodput.step take the boundaries over."""
    model = Slow()
    optimizer = sgd(model)
    train(model, optimizer)
    steps = 0
    for x, y in goodput.steps(batches(8)):
        for _ in range(2):
            one_step(model, optimizer, x, y)
        steps += 1
    return {"steps": 4 + steps}


@case
def the_user_names_phases():
    """Phases of the user's around and inside; a phase that is open hides no step."""
    model = Slow()
    optimizer, steps = sgd(model), 0
    for x, y in batches():
        with goodput.phase("h2d"):
            pause()
        with goodput.phase("mine"):
            one_step(model, optimizer, x, y)
        steps += 1
    return {"steps": steps, "least": {"h2d": 4 * PAUSE_SECONDS}}


@case
def copied_in_the_loop():
    """An average that is kept by copying the model at every step."""
    model, average = Slow(), None
    optimizer, steps = sgd(model), 0
    for x, y in batches():
        one_step(model, optimizer, x, y)
        average = copy.deepcopy(model).eval()
        steps += 1
    with torch.no_grad():
        average(x)
    return {"steps": steps}


# -- all of them


def state() -> dict:
    """What the page says now."""
    recorder, writer = goodput._session.recorder, goodput._session.writer
    if writer is None:
        return {"steps": 0, "totals": {}, "events": [], "drops": 0, "off": 0, "depth": 0}
    recorder.charge(time.perf_counter_ns())
    found = Reader(writer.path, writer.fd).snapshot()
    return {
        "steps": found.steps_done,
        "totals": dict(zip(found.phases, found.totals, strict=False)),
        "events": [[event.kind, event.step] for event in found.events],
        "drops": sum(found.drops.values()),
        "off": found.last_ns - found.identity["start_mono_ns"] - sum(found.totals),
        "depth": recorder.depth,
    }


def main() -> None:
    torch.set_num_threads(1)
    goodput.auto.remove()
    report = {}
    for name in sys.argv[2:] or CASES:
        gc.collect()
        goodput.auto.install()
        before = state()
        said = CASES[name]()
        open_phases = goodput._session.recorder.depth
        goodput.auto.remove()
        after = state()
        report[name] = {
            "said": said,
            "steps": after["steps"] - before["steps"],
            "seconds": {
                phase: (ns - before["totals"].get(phase, 0)) / 1e9 for phase, ns in after["totals"].items()
            },
            "events": after["events"][len(before["events"]) :],
            "drops": after["drops"] - before["drops"],
            "off": after["off"],
            "depth": [open_phases, after["depth"]],
        }
    with open(sys.argv[1], "w") as file:
        json.dump(report, file)


if __name__ == "__main__":
    main()
