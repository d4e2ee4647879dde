"""Ranks that are killed at any moment, and a reader that looks on; run in a process of its own by tests/sdk/recorder/test_crash.py.

The process imports goodput once and forks a child for each life: the child starts a page and trains, and says
through a pipe, apart from goodput, how many steps it has completed. The parent reads the page all the while, kills
the child with SIGKILL at a random moment, and compares. Prints what the lives were like, so that the test can tell
that they were worth looking at.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from collections import Counter

from support.sdk.checks import check_records

import goodput
from goodput.rank_page import page
from goodput.rank_page.page import PageError
from goodput.rank_page.reader import Reader

SKEW_NS = 1000  # The clocks of two processors of a virtual machine may differ by so much.


def spin(microseconds: float) -> None:
    until = time.perf_counter_ns() + int(1000 * microseconds)
    while time.perf_counter_ns() < until:
        pass


def train(life: int, rng: random.Random, truth: int) -> None:
    """A rank's whole life, in the child. Writes a byte to `truth` for each step that is over."""
    goodput.start(run=f"life{life}", directory=os.environ["GOODPUT_DIR"])
    if rng.random() < 0.2:
        threading.Thread(target=in_background, daemon=True).start()
    while True:
        if rng.random() < 0.5:
            for i in goodput.steps(range(rng.randrange(1, 40)), samples=3):
                if i:
                    os.write(truth, b"x")
                turn(rng)
            os.write(truth, b"x")
        else:
            with goodput.step(samples=3):
                turn(rng)
            os.write(truth, b"x")
        if rng.random() < 0.3:
            with goodput.checkpoint():
                spin(rng.random() * 30)
        with goodput.phase("evaluation"):
            spin(rng.random() * 20)


def turn(rng: random.Random) -> None:
    with goodput.phase("forward"):
        spin(rng.random() * 10)
        with goodput.phase(rng.choice(("communication", "mine", "other"))):
            spin(rng.random() * 10)
    if rng.random() < 0.2:
        goodput.mark("x" * rng.randrange(60))


def in_background() -> None:
    while True:
        with goodput.phase("h2d"):
            spin(50)


class Onlooker:
    """Reads one page again and again; every reading must agree with the one before."""

    def __init__(self, path: str):
        self.path = path
        self.reader: Reader | None = None
        self.looks = self.steps_done = self.records = 0
        self.totals: tuple[int, ...] = ()
        self.last_record = None

    def read(self, fresh: bool) -> None:
        if self.reader is None:
            try:
                self.reader = Reader(self.path)
            except PageError as error:
                # Not there yet is all that a page's beginning may look like.
                assert error.reason == "unreadable" and "No such file" in str(error), error
                return
        if fresh:
            with Reader(self.path) as reader:
                self.compare(reader.snapshot())
        else:
            self.compare(self.reader.snapshot(since_step=self.records))
        self.looks += 1

    def compare(self, snapshot) -> None:
        after = time.perf_counter_ns()
        assert snapshot.steps_done >= self.steps_done
        assert all(now >= then for now, then in zip(snapshot.totals, self.totals, strict=False))
        charged_until = snapshot.identity["start_mono_ns"] + sum(snapshot.totals)
        assert snapshot.last_ns <= charged_until <= after + SKEW_NS, (snapshot.last_ns, charged_until, after)
        self.steps_done, self.totals = snapshot.steps_done, snapshot.totals
        check_records(snapshot)
        new = [record for record in snapshot.steps if record.number > self.records]
        if new:
            assert new[0].number == self.records + 1 or new[0].number > snapshot.steps_done - page.STEP_RING
            self.records, self.last_record = new[-1].number, new[-1]
        assert self.records == snapshot.steps_done or self.overtaken(snapshot.steps_done)

    def overtaken(self, steps_done: int) -> bool:
        """Whether the ring went round while this process had no turn, so that the newest record was gone too."""
        return self.reader.snapshot().steps_done > steps_done + page.STEP_RING - 2

    def last_look(self, completed: int) -> dict:
        """After the death: what was there last, against what the child printed."""
        assert self.reader is not None
        died_ns = time.perf_counter_ns()
        self.read(fresh=False)
        self.read(fresh=True)
        assert not self.reader.alive()
        snapshot = self.reader.snapshot()
        assert completed <= snapshot.steps_done <= completed + 1, (completed, snapshot.steps_done)
        kept = min(snapshot.steps_done, page.STEP_RING)
        numbers = [record.number for record in snapshot.steps]
        assert numbers[-1:] == [snapshot.steps_done][:kept] and len(numbers) >= kept - 1
        assert snapshot.last_ns <= died_ns and snapshot.ended == ""
        events = [event.number for event in snapshot.events]
        assert events == list(range(events[0], events[0] + len(events))) if events else True
        assert all(set(event.text) <= {"x"} for event in snapshot.events)
        counted = sum(sum(counts) for _, counts in self.reader.histogram_blocks(0))
        assert snapshot.steps_done - 1 <= counted <= snapshot.steps_done
        self.reader.close()
        return {
            "steps": snapshot.steps_done,
            "one_ahead": snapshot.steps_done == completed + 1,
            "in_step": snapshot.step_start_ns > 0,
            "between_stores": sum(snapshot.totals) > snapshot.last_ns - snapshot.identity["start_mono_ns"],
        }


def live_and_die(life: int, rng: random.Random, found: Counter) -> None:
    read, truth = os.pipe()
    child_rng = random.Random(rng.random())
    child = os.fork()
    if child == 0:
        try:
            train(life, child_rng, truth)
        finally:
            os._exit(1)
    os.close(truth)
    onlooker = Onlooker(os.path.join(os.environ["GOODPUT_DIR"], f"life{life}.0.1.page"))
    in_start = rng.random() < 0.15
    until = time.perf_counter() + (rng.random() * 0.004 if in_start else 0.003 + rng.random() * 0.012)
    try:
        while time.perf_counter() < until or not (in_start or onlooker.steps_done):
            onlooker.read(fresh=rng.random() < 0.3)
    finally:
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL, status
    completed = 0
    while output := os.read(read, 1 << 16):
        completed += len(output)
    os.close(read)
    found["looks"] += onlooker.looks
    if onlooker.reader is None and not os.path.exists(onlooker.path):
        assert completed == 0
        found["before_the_page"] += 1
        return
    onlooker.read(fresh=False)
    found.update(onlooker.last_look(completed))
    os.unlink(onlooker.path)


def main(lives: int, seed: int) -> None:
    rng, found = random.Random(seed), Counter()
    for life in range(lives):
        live_and_die(life, rng, found)
    found["lives"] = lives
    drafts = os.listdir(os.environ["GOODPUT_DIR"])
    assert all(name.startswith(".") for name in drafts), drafts
    found["drafts"] = len(drafts)
    print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
