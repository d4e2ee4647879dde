"""A training with deep looks and what can go wrong in one, for test_deep_look.py.

In: the file to write to, and how to end. Out: JSON by case. One process, since importing torch takes seconds; a case
goes on until what it waits for has happened, within a bound.
"""

import json
import os
import signal
import sys
import time

import torch
from support.core_wait import CoreWait
from torch.profiler import ProfilerActivity, profile

import goodput
import goodput.auto
from goodput.rank_page import page
from goodput.rank_page.reader import Reader
from goodput.sdk.automatic import deep_look_child

# Long, since the analysis has the lowest priority: beside processes that keep every core busy it takes most of a minute.
SLEEP_SECONDS, SECONDS_MAX = 0.004, 120
# Between two steps once an analysis has been under way for so many: the page keeps 1 024, and the one it looked at must be
# among them.
PAUSE_SECONDS, STEPS_WITHOUT_PAUSE = 0.2, 256
CORE_SECONDS = 0.002  # for which a step leaves its core to the analysis, which has none where all are busy
CASES = {}
torch.set_num_threads(1)


def case(function):
    CASES[function.__name__] = function
    return function


class Slow(torch.utils.data.Dataset):
    """The loader of a step sleeps 4 times SLEEP_SECONDS."""

    def __len__(self):
        return 1 << 20

    def __getitem__(self, index):
        time.sleep(SLEEP_SECONDS)
        return torch.full((8,), float(index % 7))


def deep():
    return goodput._session.automatic.deep_look


def fresh() -> None:
    """Begin a case with nothing under way and a look that is due."""
    one = deep()
    one.close()
    one.in_a_row, one.off, one.due_ns, one.this_cost_ns = 0, False, 0, 0


def train(until, loader=None, inside=None, seed=0, steps=None):
    """Steps until `until()`; `inside()` is called in each, between the backward pass and the optimizer's step."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters())
    goodput._session.automatic.training.set_anchor(lambda: None)
    end = time.monotonic() + SECONDS_MAX
    done = 0
    batches = iter(loader) if loader is not None else None
    while (done < steps) if steps else not until():
        assert time.monotonic() < end, "waited in vain"
        if deep().analysis:
            time.sleep(CORE_SECONDS)
        loss = model(next(batches) if batches is not None else torch.ones(4, 8)).sum()
        loss.backward()
        if inside is not None:
            inside()
        optimizer.step()
        optimizer.zero_grad()
        done += 1
    return model


def looked():
    """Until one more look has been done than now."""
    before = deep().looks
    return lambda: deep().looks > before


def slowly(until):
    """As `until`, with a pause before each step where an analysis takes long."""
    steps = 0

    def wait():
        nonlocal steps
        steps += deep().analysis is not None
        if deep().analysis and steps > STEPS_WITHOUT_PAUSE:
            time.sleep(PAUSE_SECONDS)
        return until()

    return wait


def failed():
    before = deep().failed
    return lambda: deep().failed > before


def snapshot():
    writer = goodput._session.writer
    return Reader(writer.path, writer.fd).snapshot()


@case
def slow_loader():
    loader, waited = torch.utils.data.DataLoader(Slow(), batch_size=4), CoreWait()
    train(slowly(looked()), loader)
    one, waited_seconds = deep(), waited.seconds()
    one.off = True  # One more may have begun.
    train(slowly(lambda: not (one.wanted or one.profile or one.analysis)), loader)
    train(None, loader, steps=3)
    found = snapshot()
    phases = dict(zip(found.phases, found.totals, strict=True))
    lengths = {record.step: record.end_ns - record.start_ns for record in found.steps}
    last, first = found.steps[-1], found.steps[0]
    outside = dict(zip(found.phases, last.outside, strict=True))
    return {
        "document": one.document(),
        "step_ns": lengths[one.seen["step"]],
        "core_wait_ns": round(1e9 * waited_seconds),
        "page_cost_ns": found.cost_ns,
        "phase_ns": phases["deep_look"],
        "outside_ns": outside["deep_look"],
        "steps": [last.number - first.number + 1, last.step - first.step + 1, len(found.steps)],
        "closes": sum(found.totals) == found.last_ns - found.identity["start_mono_ns"],
        "report": str(goodput.report()),
        "file": json.load(open(goodput._session.writer.path + ".look.json")),
        "left": [name for name in os.listdir(os.environ["TMPDIR"]) if name.startswith("goodput-")],
    }


@case
def same_weights():
    one, hashes, looks = deep(), [], []
    for off in (True, False):
        fresh()
        one.off, before, done = off, one.looks, looked()
        model = train(None, seed=7, steps=400)
        train(lambda off=off, done=done: off or done())
        hashes.append([value.tolist() for value in model.state_dict().values()])
        looks.append(one.looks - before)
    return {"same": hashes[0] == hashes[1], "looks": looks}


@case
def profiler_of_the_user():
    """It runs already; then it begins in a step that is traced; then it is prepared, in its warm-up."""
    one, out = deep(), {}
    before = one.skipped
    with profile(activities=[ProfilerActivity.CPU]) as users:
        train(lambda: one.skipped > before)
    out["skipped"] = one.skipped - before
    out["events"] = len(users.events())
    fresh()
    before, seen = (one.skipped, one.looks), []

    def begin():
        if one.profile is not None and not seen:
            seen.append(profile(activities=[ProfilerActivity.CPU]))
            seen[0].start()
            seen.append(one.profile is None)

    train(lambda: seen, inside=begin)
    seen[0].stop()
    out["gave_way"], out["events_after"] = seen[1], len(seen[0].events())
    out["left"] = one.skipped - before[0]
    fresh()
    before = one.skipped
    users = profile(
        activities=[ProfilerActivity.CPU], schedule=torch.profiler.schedule(wait=0, warmup=1, active=1)
    )
    users.start()
    train(lambda: one.skipped > before)
    out["warm"] = one.profile is None
    users.step()
    train(None, steps=2)
    users.stop()
    out["events_warm"] = len(users.events())
    fresh()
    train(looked())
    return out


@case
def fork():
    one, children = deep(), []

    def inside():
        if one.profile is not None and not children:
            pid = os.fork()
            if pid == 0:
                torch.ones(3).sum()
                os._exit(3 if torch.autograd._profiler_enabled() or one.profile is not None else 0)
            children.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    train(lambda: children, inside=inside)
    fresh()
    train(looked())
    return {"child": children}


@case
def evaluation():
    """A traced step in which an evaluation begins has no result."""
    one, seen = deep(), []
    model = torch.nn.Linear(8, 1)

    def inside():
        if one.profile is not None and not seen:
            with torch.no_grad():
                goodput._session.automatic.leave_step()
                model(torch.ones(1, 8))
            seen.append(one.profile is None and not torch.autograd._profiler_enabled())

    train(lambda: seen, inside=inside)
    return {"stopped": seen}


@case
def trouble():
    """What raises, and what is lost, is counted; training goes on."""
    one, real, out = deep(), torch.profiler.profile, {}

    class Raises(real):
        what = ""

        def __getattribute__(self, name):
            if name == Raises.what:
                raise RuntimeError(f"no {name}")
            return super().__getattribute__(name)

    torch.profiler.profile = Raises
    for what in ("start_trace", "stop", "export_chrome_trace"):
        fresh()
        Raises.what = what
        train(failed())
        on = torch.autograd._profiler_enabled() or torch.autograd.profiler._is_profiler_enabled
        out[what] = [one.why, on, one.profile is not None]
    torch.profiler.profile = real
    fresh()
    place = os.environ["TMPDIR"]
    os.environ["TMPDIR"] = "/nonexistent"
    train(failed())
    out["directory"] = [one.why]
    os.environ["TMPDIR"] = place
    fresh()
    train(lambda: one.analysis is not None)
    os.kill(one.analysis.child.pid, signal.SIGKILL)
    train(failed())
    out["killed"] = [one.why]
    fresh()
    path, one.session.writer.path = one.session.writer.path, "/nonexistent/r.0.1.page"
    train(looked())
    one.session.writer.path = path
    out["errors"] = [goodput._session.recorder.words[page.W_DROPS + page.DROPS.index("error")]]
    real_command, deep_look_child.SECONDS_MAX = deep_look_child.command, 0
    deep_look_child.command = lambda: [sys.executable, "-c", "import time; time.sleep(60)"]
    fresh()
    one.in_a_row = 2  # The third in a row is the last.
    train(lambda: one.analysis is not None)
    pid = one.analysis.child.pid
    train(failed())
    out["late"] = [one.why, one.off, alive(pid)]
    deep_look_child.command, deep_look_child.SECONDS_MAX = real_command, 300
    fresh()
    train(looked())
    return out


def alive(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


def main() -> None:
    path, how = sys.argv[1:]
    goodput.start(run="looks")
    train(None, steps=70)
    out = {}
    for name, function in CASES.items():
        fresh()
        out[name] = function()
    fresh()
    one = deep()
    if how == "traced":
        train(lambda: one.profile is not None)
        out["end"] = torch.autograd._profiler_enabled()
    else:
        deep_look_child.command = lambda: [sys.executable, "-c", "import time; time.sleep(600)"]
        train(lambda: one.analysis is not None)
        out["end"] = one.analysis.child.pid
    with open(path, "w") as file:
        json.dump(out, file)


if __name__ == "__main__":
    main()
