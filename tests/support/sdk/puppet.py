"""A training process on strings: runs programs that its parent sends, each on a page of its own.

A program is a list of operations, nested where the code would be: ["phase", name, body], ["step", index, body],
["steps", turns, end, body], ["enter", name], ["exit", name], ["raise"], ["spin", ns], ["mark", text],
["checkpoint", body], ["resumed", step], ["held", name, body], ["nest", depth, name]. `end` is how the loop over
steps ends: "exhaust", "break" after the body, "top" before the last body, "loader" when the loader raises.

    puppet = Puppet(directory, pure=True)
    trace, path = puppet.play([["steps", 3, "break", [["phase", "forward", []]]]])
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

from support.sdk import sdk_process

import goodput
from goodput.rank_page import page


class Puppet:
    """The parent's side."""

    def __init__(self, directory, pure: bool):
        self.process = subprocess.Popen(
            [sys.executable, "-S", os.path.abspath(__file__)], text=True, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, env=sdk_process.environment(directory, pure, {}),
        )  # fmt: skip

    def play(self, program: list) -> tuple[list, str]:
        """(what was seen after each operation, the path of the last page)."""
        self.process.stdin.write(json.dumps(program) + "\n")
        self.process.stdin.flush()
        trace, path = json.loads(self.process.stdout.readline())
        return trace, path

    def end(self) -> None:
        self.process.communicate(timeout=300)
        assert self.process.returncode == 0


class Boom(Exception):
    pass


class Player:
    """The child's side."""

    def __init__(self):
        self.trace: list = []

    def look(self) -> None:
        """Structure alone: both implementations must agree on it, whatever the clock showed."""
        recorder = goodput._session.recorder
        words = recorder.words
        start = goodput._session.identity["start_mono_ns"]
        totals = list(words[page.W_TOTALS : page.W_TOTALS + page.PHASE_SLOTS])
        exact = sum(totals) == words[page.W_LAST] - start
        seen = [words[page.W_PHASE], words[page.W_STEPS], words[page.W_STEP_NEXT] - page.STEP_BIAS]
        running = words[page.W_STEP_START] > 0
        drops = list(words[page.W_DROPS : page.W_DROPS + len(page.DROPS)])
        self.trace.append(
            [*seen, running, recorder.depth, recorder.entries, words[page.W_EVENTS], drops, exact]
        )

    def body(self, operations: list) -> None:
        for name, *arguments in operations:
            getattr(self, name)(*arguments)
            self.look()

    def phase(self, name, body):
        with goodput.phase(name):
            self.look()
            self.body(body)

    def step(self, index, body):
        with goodput.step(index, samples=2):
            self.look()
            self.body(body)

    def steps(self, turns, end, body):
        for i in goodput.steps(self.loader(turns, end), samples=3):
            self.look()
            if end == "top" and i == turns - 1:
                break
            self.body(body)
            if end == "break" and i == turns - 1:
                break

    def loader(self, turns, end):
        yield from range(turns)
        if end == "loader":
            raise Boom

    def enter(self, name):
        goodput.phase(name).__enter__()

    def exit(self, name):
        goodput.phase(name).__exit__(None, None, None)

    def held(self, name, body):
        def generator():
            with goodput.phase(name):
                yield

        holds = generator()
        next(holds)
        self.body(body)
        holds.close()

    def nest(self, depth, name):
        with goodput.phase(name):
            if depth > 1:
                self.nest(depth - 1, name)

    def checkpoint(self, body):
        with goodput.checkpoint():
            self.body(body)

    def resumed(self, step):
        goodput.resumed(step)

    def mark(self, text):
        goodput.mark(text)

    def spin(self, nanoseconds):
        until = time.perf_counter_ns() + nanoseconds
        while time.perf_counter_ns() < until:
            pass

    def raise_(self):
        raise Boom


setattr(Player, "raise", Player.raise_)


def play(program: list, number: int) -> tuple[list, str]:
    player = Player()
    goodput.start(run=f"p{number}")
    try:
        player.body(program)
    except Boom:
        player.trace.append("Boom")
    player.look()
    path = goodput._session.writer.path
    goodput.stop()
    return player.trace, path


def main() -> None:
    for name in ("mine", "other"):
        goodput.phase(name)
    for number, line in enumerate(sys.stdin):
        print(json.dumps(play(json.loads(line), number)), flush=True)


if __name__ == "__main__":
    main()
