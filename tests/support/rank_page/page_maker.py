"""Pages for the tests: a good one made by the SDK's recorder, and files with anything else in them."""

from __future__ import annotations

import os
import time
from pathlib import Path

from goodput.rank_page import page
from goodput.sdk.recorder.phase import Phase
from goodput.sdk.recorder.recorder import Recorder

HEAD_BYTES = 8 * page.W_HISTOGRAMS


def identity(**given) -> dict:
    return {
        "run": "r", "rank": 0, "world_size": 2, "attempt": 1, "host": "n0", "pid": os.getpid(),
        "pid_start_ticks": page.process_start_ticks(), "devices": 1, "stage": None, "group": "", "device": "H100",
        "device_uuid": "GPU-1", "flops_per_step": 1e12, "peak_flops_per_second": None, "gpu_hour_cost": 2.5,
        "start_unix_ns": time.time_ns(), "start_mono_ns": time.perf_counter_ns(), **given,
    }  # fmt: skip


class Rank:
    """A rank in this process, on a page in `directory`."""

    def __init__(self, directory, **given):
        os.makedirs(directory, exist_ok=True)
        self.writer = page.Writer(str(directory), identity(**given))
        self.path, self.words = Path(self.writer.path), self.writer.words
        self.recorder = Recorder()
        self.recorder.open(self.words, self.writer_start(), self.writer.fd)
        page.write_user_phase(self.words, 0, b"tokenize", b"loader")
        self.recorder.used.append(len(page.PHASES))

    def writer_start(self) -> int:
        return self.words[page.W_LAST]

    def train(self, steps: int) -> Rank:
        recorder = self.recorder
        forward, mine = Phase(recorder, "forward", 3), Phase(recorder, "tokenize", len(page.PHASES))
        for _ in range(steps):
            with mine:
                pass
            began = recorder.end_gap(time.perf_counter_ns())
            assert recorder.begin_step(began, None, 3)
            with forward, mine:
                pass
            recorder.end_step(time.perf_counter_ns())
        recorder.event("checkpoint_committed", time.perf_counter_ns(), steps - 1)
        recorder.event("mark", time.perf_counter_ns(), steps, "here ☃")
        return self

    def step(self, **phase_ns: int) -> Rank:
        """One step that spent so many ns in each phase, on a clock that goes on from the page's last moment."""
        recorder = self.recorder
        began = recorder.last_ns
        assert recorder.begin_step(recorder.end_gap(began), None, 3)
        for name, ns in phase_ns.items():
            recorder.charge(recorder.last_ns + ns)
            self.words[page.W_TOTALS] -= ns
            self.words[page.W_TOTALS + page.PHASES.index(name)] += ns
        recorder.end_step(recorder.last_ns)
        return self

    def head(self) -> bytes:
        """Everything but the histograms."""
        return bytes(self.words.cast("B")[:HEAD_BYTES])


class Forgery:
    """A file that begins as a page's head, to be changed word by word, and is as long as a page."""

    def __init__(self, path: Path, head: bytes):
        self.path, self.good = path, head
        path.write_bytes(head)
        os.truncate(path, page.FILE_BYTES)
        self.fd = os.open(path, os.O_RDWR)

    def put(self, offset: int, data: bytes) -> None:
        os.pwrite(self.fd, data, offset)

    def word(self, word: int, value: int) -> None:
        self.put(8 * word, value.to_bytes(8, "little"))

    def restore(self) -> None:
        self.put(0, self.good)

    def close(self) -> None:
        os.close(self.fd)
