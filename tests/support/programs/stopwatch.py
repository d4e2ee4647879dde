"""The stopwatch of a training program's author: exclusive nanoseconds per section and step, written as JSON.

    watch = Stopwatch()
    for batch in watch.each("loader", loader):
        with watch("compute"):
            train(batch)
        watch.step()
    watch.write(sys.argv[1], model, losses)

Independent of goodput, which a program neither imports nor knows. It also records how long the training thread had no
core, during which two stopwatches may see different sections.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections import Counter
from time import perf_counter_ns


class Stopwatch:
    """Sections are named by the state their author expects; the time of an inner one is not the outer's.

    `before` is the time until the first section, `steps` has the sections of each optimizer step, `between` those that
    are part of no step (evaluations and checkpoints), and `unfinished` what came after the last step.
    """

    def __init__(self):
        self.began_ns = process_start_ns()
        self.now_ns = self.step_ns = self.core_wait_ns = 0
        self.names: list[str] = []
        self.running: Counter[str] = Counter()
        self.steps: list[dict[str, int]] = []
        self.between: Counter[str] = Counter()

    def _charge(self) -> None:
        now = perf_counter_ns()
        self.running[self.names[-1] if self.names else "other"] += now - self.now_ns
        self.now_ns = now

    @contextlib.contextmanager
    def __call__(self, section: str):
        if self.now_ns:
            self._charge()
        else:
            self.now_ns = self.step_ns = perf_counter_ns()
            self.core_wait_ns = core_wait_ns()
        # What an evaluation waits for is part of it.
        self.names.append("evaluation" if "evaluation" in self.names else section)
        try:
            yield
        finally:
            self._charge()
            self.names.pop()

    def each(self, section: str, iterable):
        """The items of an iterable, with the waits for them in a section; what makes the first iterator is startup."""
        with self(section) if self.now_ns else contextlib.nullcontext():
            iterator = iter(iterable)
        while True:
            with self(section):
                try:
                    item = next(iterator)
                except StopIteration:
                    return
            yield item

    def step(self) -> None:
        """An optimizer step has ended, and the next begins."""
        self._charge()
        for section in ("evaluation", "checkpoint", "restore"):
            self.between[section] += self.running.pop(section, 0)
        self.steps.append(dict(self.running))
        self.running.clear()

    def write(self, path: str, model, outputs) -> None:
        """Write the measured sections, a hash of the weights and the outputs to the bit."""
        self._charge()
        found = {
            "began": self.began_ns,
            "before": self.step_ns - self.began_ns,
            "steps": self.steps,
            "between": self.between,
            "unfinished": self.running,
            "wall": self.now_ns - self.began_ns,
            "core_wait": core_wait_ns() - self.core_wait_ns,
            "weights": digest(model),
            "outputs": [float(value).hex() for value in outputs],
        }
        with open(path, "w") as file:
            json.dump(found, file)


def core_wait_ns() -> int:
    """How long this thread has been ready to run without a core, by the kernel's schedstat; 0 where it does not count."""
    try:
        with open("/proc/thread-self/schedstat") as file:
            return int(file.read().split()[1])
    except OSError:
        return 0


def process_start_ns() -> int:
    """When this process started, on the clock of perf_counter_ns."""
    with open("/proc/self/stat") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19])
    age_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - ticks * 10**9 // os.sysconf("SC_CLK_TCK")
    return perf_counter_ns() - age_ns


def digest(model) -> str:
    """A hash of the weights of a model, or of a dictionary of them."""
    found = hashlib.sha256()
    weights = model if isinstance(model, dict) else model.state_dict()
    for name, value in sorted(weights.items()):
        found.update(name.encode() + value.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()
