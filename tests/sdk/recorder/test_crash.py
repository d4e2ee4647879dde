"""What a rank wrote survives its own SIGKILL, wherever it hits, and a reader beside it never sees nonsense."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from support.sdk import crash, sdk_process
from support.sdk.checks import check_records

from goodput.rank_page import page
from goodput.rank_page.reader import Reader

LIVES = 100


def test_page_survives_a_hundred_kills(directory, pure):
    directory.mkdir()
    done = subprocess.run(
        [sys.executable, "-S", os.path.abspath(crash.__file__), str(LIVES), "11"], capture_output=True, text=True,
        timeout=300, env=sdk_process.environment(directory, pure, {}),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    # The lives were worth it: most had steps, many were read while they lived, many died inside a step.
    assert found["lives"] == LIVES and found["steps"] > 10 * LIVES and found["looks"] > 10 * LIVES
    assert found["in_step"] > LIVES / 5 and found["before_the_page"] < LIVES / 2


LOGGED = """
class Logged:
    '''A memoryview of words that notes each store as [byte offset, hex]; a slice as one store for each word.'''
    def __init__(self, words, log): self.words, self.log = words, log
    def __getitem__(self, at): return self.words[at]
    def __setitem__(self, at, value):
        self.words[at] = value
        for word in range(*at.indices(len(self.words))) if isinstance(at, slice) else [at]:
            self.log.append([8 * word, self.words[word].to_bytes(8, "little").hex()])
    def cast(self, kind): return LoggedBytes(self.words.cast(kind), self.log)
class LoggedBytes(Logged):
    def __setitem__(self, at, value):
        self.words[at] = value
        self.log += [[byte, f"{self.words[byte]:02x}"] for byte in range(*at.indices(len(self.words)))]

def turn(i):
    with goodput.phase("forward"):
        with goodput.phase("mine" if i % 2 else "h2d", "loader"): spin(5)
    if i == 1: goodput.mark("x" * 60)

goodput.start(run="r")
for i in goodput.steps(range(BEFORE)): goodput.mark("y" * 60)
recorder, log = goodput._session.recorder, []
with open(goodput._session.writer.path, "rb") as file, open(os.environ["GOODPUT_DIR"] + "/first", "wb") as first:
    first.write(file.read(HEAD))
recorder.words = Logged(goodput._session.writer.words, log)
done = []
def note(): done.append([len(log), recorder.steps])
for i in goodput.steps(range(2), samples=2):
    note()
    turn(i)
note()
with goodput.checkpoint(): pass
with goodput.step(): spin(5)
note()
emit(log); emit(done)
os._exit(0)
"""


@pytest.mark.parametrize("before", [0, page.STEP_RING + 6])
def test_page_is_readable_after_each_store(directory, before):
    """The stores of the Python implementation one by one, on a new page and where the ring has gone round.

    A rank that is killed at a store leaves what came before: whole, but for its last act.
    """
    head = 8 * page.W_HISTOGRAMS
    code = LOGGED.replace("BEFORE", str(before)).replace("HEAD", str(head))
    out = sdk_process.run(code, directory, pure=True)
    log, done = out.emitted
    assert len(log) > 300 and done[-1][1] == before + 3
    copy = directory / "first"
    os.truncate(copy, page.FILE_BYTES)
    with open(copy, "r+b", buffering=0) as file, Reader(str(copy)) as reader:
        totals = reader.snapshot(page.NS_MAX).totals
        for at, (offset, stored) in enumerate(log):
            os.pwrite(file.fileno(), bytes.fromhex(stored), offset)
            if offset < head:
                totals = check_look(reader, totals, [steps for stores, steps in done if stores <= at + 1])


def check_look(reader: Reader, totals: tuple, completed: list[int]) -> tuple:
    snapshot = reader.snapshot()
    assert all(now >= then for now, then in zip(snapshot.totals, totals, strict=False))
    assert sum(snapshot.totals) >= snapshot.last_ns - snapshot.identity["start_mono_ns"]
    if completed:
        assert completed[-1] <= snapshot.steps_done <= completed[-1] + 1
    numbers = [record.number for record in snapshot.steps]
    # All are there, but for the oldest, whose place the next is about to take.
    expected = range(max(snapshot.steps_done - page.STEP_RING, 0) + 1, snapshot.steps_done + 1)
    assert numbers in (list(expected), list(expected)[1:])
    assert snapshot.steps_done > page.STEP_RING or numbers == list(expected)
    check_records(snapshot)
    for event in snapshot.events:
        assert event.text in ("x" * 60, "y" * 60) if event.kind == "mark" else event.text == ""
    return snapshot.totals
