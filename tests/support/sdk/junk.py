"""Calls every public function with anything, in any order; run in a process of its own by tests/sdk/startup/test_junk.py.

What a user may pass includes objects that raise from each of their methods. `Mine` is what the user's own iterable
or body raises: nothing else may come out of any call.
"""

from __future__ import annotations

import json
import random
import sys
import threading

import goodput


class Mine(Exception):
    pass


class Hostile:
    """Raises from every method."""

    def _raise(self, *_, **__):
        raise random.choice(
            [RuntimeError("hostile"), ValueError(), OverflowError(), RecursionError(), KeyError()]
        )

    __str__ = __repr__ = __index__ = __int__ = __float__ = __bool__ = __len__ = __hash__ = __eq__ = __ne__ = (
        _raise
    )
    __lt__ = __le__ = __gt__ = __ge__ = __fspath__ = __format__ = __getattr__ = __contains__ = __call__ = (
        _raise
    )


class HostileText(str):
    __hash__ = str.__hash__

    def _raise(self, *_, **__):
        raise RuntimeError("hostile text")

    encode = isprintable = __str__ = __repr__ = __eq__ = __ne__ = __len__ = __getitem__ = __iter__ = _raise


class Whole:
    def __index__(self):
        return 3


class Huge:
    def __index__(self):
        return 1 << 80

    def __str__(self):
        return "x" * 1_000_000


def values(rng: random.Random) -> list:
    return [
        None, True, False, 0, 1, -1, 5, 1 << 31, 1 << 53, 1 << 62, (1 << 62) - 1, 1 << 64, -(1 << 70), 10**5000,
        0.0, 1.5, -1.0, 1e300, float("nan"), float("inf"), -float("inf"), 1 + 2j,
        "", "forward", "mine", "none", "loader", "failed", "x" * 40, "x" * 100_000, "\0", "\ud800", "☃" * 20, "a/b\n",
        b"", b"forward", bytearray(b"x"), memoryview(b"abc"), [], [1], {}, {"a": 1}, set(), (), (1, 2), range(3),
        object(), object, len, lambda: 1, Hostile(), HostileText("mine"), HostileText("forward"), Whole(), Huge(),
        Exception("e"), ..., NotImplemented, sys, rng.random(), rng.getrandbits(80), f"p{rng.randrange(30)}",
    ]  # fmt: skip


class Caller:
    def __init__(self, seed: int):
        self.rng = random.Random(seed)
        self.kept: list = []
        self.open: list = []
        self.faults: list[str] = []

    def any(self):
        return self.rng.choice(values(self.rng))

    def sometimes_good(self, good):
        return good if self.rng.random() < 0.4 else self.any()

    def guarded(self, name: str, act, *allowed):
        """The result of act(), whose exceptions must be the user's own."""
        try:
            return act()
        except (Mine, *allowed):
            return None
        except BaseException as error:
            self.faults.append(f"{name}: {type(error).__name__}: {str(error)[:100]}")
            return None

    def call(self, depth: int = 0) -> None:
        names = (
            "start",
            "stop",
            "step",
            "steps",
            "phase",
            "decorate",
            "checkpoint",
            "resumed",
            "mark",
            "report",
        )
        name = self.rng.choice((*names, "misuse", "thread") if depth < 4 else names[-4:])
        getattr(self, name)(depth)

    def body(self, depth: int) -> None:
        for _ in range(self.rng.randrange(3)):
            if depth < 4:
                self.call(depth + 1)
        if self.rng.random() < 0.2:
            raise Mine

    def start(self, depth):
        names = (
            "run", "rank", "world_size", "attempt", "device", "device_uuid", "devices", "group", "stage",
            "flops_per_step", "peak_flops_per_second", "gpu_hour_cost", "directory",
        )  # fmt: skip
        given = {name: self.any() for name in self.rng.sample(names, self.rng.randrange(5))}
        if self.rng.random() < 0.8:
            given.pop("directory", None)
        self.guarded(f"start({sorted(given)})", lambda: goodput.start(**given))

    def stop(self, depth):
        if self.rng.random() < 0.1:
            value = self.any()
            self.guarded("stop", lambda: goodput.stop(value))

    def entered(self, name, made, depth):
        def act():
            with made:
                self.body(depth)

        if made is not None:
            self.guarded(name, act)

    def step(self, depth):
        index, samples = self.sometimes_good(None), self.sometimes_good(4)
        self.entered("step", self.guarded("step()", lambda: goodput.step(index, samples)), depth)

    def steps(self, depth):
        samples, items = self.sometimes_good(4), self.rng.choice([range(3), [], "ab", self.broken()])
        stop_at = self.rng.randrange(4)

        def act():
            for i, _ in enumerate(goodput.steps(items, samples)):
                self.body(depth)
                if i == stop_at:
                    break

        self.guarded("steps", act)

    def broken(self):
        yield 1
        raise Mine

    def phase(self, depth):
        name, state = self.sometimes_good("forward"), self.sometimes_good("productive")
        made = self.guarded("phase()", lambda: goodput.phase(name, state))
        self.kept.append(made)
        self.entered("phase", made, depth)

    def decorate(self, depth):
        name = self.any()
        timed = self.guarded("decorate", lambda: goodput.phase(name)(lambda: self.body(depth)))
        self.guarded("decorated", timed)

    def checkpoint(self, depth):
        step, wait = self.sometimes_good(None), self.any()
        made = self.guarded("checkpoint()", lambda: goodput.checkpoint(step, wait))
        self.kept.append(made)
        if self.rng.random() < 0.5:
            self.entered("checkpoint", made, depth)
        elif made is not None:
            self.guarded("commit", made.commit)

    def resumed(self, depth):
        value = self.rng.randrange(-1, 30) if self.rng.random() < 0.2 else self.any()
        if self.rng.random() < 0.2:
            self.guarded("resumed", lambda: goodput.resumed(value))

    def mark(self, depth):
        value = self.any()
        self.guarded("mark", lambda: goodput.mark(value))

    def report(self, depth):
        if self.rng.random() < 0.1:
            self.guarded("report", lambda: str(goodput.report()) and goodput.report().account)

    def misuse(self, depth):
        """Enter or leave, out of turn, something that was made before."""
        made = self.rng.choice(self.kept[-8:] or [None])
        if made is None:
            return
        if self.rng.random() < 0.5:
            self.open.append(made)
            self.guarded("enter", made.__enter__)
        else:
            self.guarded("exit", lambda: made.__exit__(None, None, None))

    def close(self):
        """Leave what misuse entered, in any order: inside a phase nothing is a step."""
        self.rng.shuffle(self.open)
        while self.open:
            made = self.open.pop()
            self.guarded("exit", lambda made=made: made.__exit__(None, None, None))

    def thread(self, depth):
        if self.rng.random() < 0.2:
            thread = threading.Thread(target=self.guarded, args=("thread", lambda: self.body(depth)))
            thread.start()
            thread.join()


def main(seed: int, calls: int) -> None:
    caller = Caller(seed)
    for call in range(calls):
        caller.call()
        if call % 8 == 0:
            caller.close()
    print(json.dumps(caller.faults), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
