"""Queries NCCL's RAS about a job of which a rank of this node hangs (`goodput node --nccl-ras ADDRESS`).

The agents of the nodes with the job's first and last rank ask, once these ranks have made no progress for AFTER_NS, and
again after pauses that double from AGAIN_NS to AGAIN_NS_MAX. The query runs in a child process, one at a time, which is
killed after SECONDS_MAX: whoever listens at the address may be slow, or send what is no answer. It reads at most
`query.BYTES_MAX`, in `query.MEMORY_BYTES_MAX`, and prints a goodput.wire.ras.RasAnswer, which the rank reports.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from goodput.wire.ras import RasAnswer, ras_problem
from goodput_exporters.system.ranks import RankKey

if TYPE_CHECKING:
    # Not imported at run time: a collector that cannot be imported must not end the agent.
    from goodput_exporters.collectors.ranks.rank import Rank

log = logging.getLogger("goodput.node")

SECOND_NS = 10**9
AFTER_NS, AGAIN_NS, AGAIN_NS_MAX = 45 * SECOND_NS, 60 * SECOND_NS, 600 * SECOND_NS
SECONDS_MAX, BETWEEN_SECONDS = 60.0, 5.0
OUTPUT_BYTES_MAX = 1 << 16  # A pipe holds as much, so that the child ends before it is read.
ANSWERED, FAILED = "answered", "failed"
_decoder = msgspec.json.Decoder(RasAnswer)


class _Hang(NamedTuple):
    """A rank without progress since `progress_ns`; the next query is due at `due_ns`, the one after `pause_ns` later."""

    progress_ns: int
    due_ns: int
    pause_ns: int


class RasQueries:
    def __init__(self, address: str, between_seconds: float = BETWEEN_SECONDS):
        self._address, self._between_seconds = address, between_seconds
        self._hangs: dict[RankKey, _Hang] = {}
        self._child: subprocess.Popen | None = None
        self._asked: RankKey | None = None
        self._overdue_ns = 0
        self._problem = ""
        self.outcomes = Counter({ANSWERED: 0, FAILED: 0})

    def poll(self, ranks: Iterable[Rank], now_ns: int) -> None:
        """Take the answer of a query that has ended, or begin one that is due. Waits for nothing."""
        by_key = {rank.key: rank for rank in ranks if _may_ask(rank, now_ns)}
        self._hangs = {key: self._hang(key, rank) for key, rank in by_key.items()}
        if self._child is not None:
            self._poll_child(by_key, now_ns)
            return
        due = [key for key, hang in self._hangs.items() if hang.due_ns <= now_ns]
        if due:
            self._begin(by_key[min(due, key=lambda key: self._hangs[key].due_ns)], now_ns)

    def collect(self, families) -> None:
        families.add_counts("goodput_node_ras_queries_total", "outcome", self.outcomes)

    def stop(self) -> None:
        """Kill the child process, if there is one."""
        if self._child is not None:
            _kill(self._child)

    def _hang(self, key: RankKey, rank: Rank) -> _Hang:
        known, progress_ns = self._hangs.get(key), rank.progress_ns()
        if known is not None and known.progress_ns == progress_ns:
            return known
        return _Hang(progress_ns, progress_ns + AFTER_NS, AGAIN_NS)

    def _begin(self, rank: Rank, now_ns: int) -> None:
        hang = self._hangs[rank.key]
        pause_ns = min(2 * hang.pause_ns, AGAIN_NS_MAX)
        self._hangs[rank.key] = hang._replace(due_ns=now_ns + hang.pause_ns, pause_ns=pause_ns)
        of = self._address, str(rank.identity.pid), str(self._between_seconds)
        call = [sys.executable, "-m", f"{__name__}.query", *of]
        try:
            self._child = subprocess.Popen(
                call, cwd="/", start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        except OSError as error:
            self._fail(f"the query cannot be run: {error.strerror}")
            return
        self._asked, self._overdue_ns = rank.key, now_ns + int(SECONDS_MAX * SECOND_NS)

    def _poll_child(self, by_key: dict[RankKey, Rank], now_ns: int) -> None:
        child = self._child
        assert child is not None and child.stdout is not None  # It was started with a pipe.
        status = child.poll()
        if status is None:
            if now_ns >= self._overdue_ns:
                _kill(child)
            return
        with child.stdout as stdout:
            output = stdout.read(OUTPUT_BYTES_MAX)
        self._child = None
        if now_ns >= self._overdue_ns and status < 0:
            self._fail(f"no answer within {SECONDS_MAX:g} s")
        elif status:
            self._fail(output.decode(errors="replace").strip() or f"the query ended with status {status}")
        else:
            self._take(output, by_key.get(self._asked) if self._asked else None)

    def _take(self, output: bytes, rank: Rank | None) -> None:
        try:
            answer = _decoder.decode(output)
        except msgspec.DecodeError as error:
            self._fail(f"the query printed no answer: {error}")
            return
        if problem := ras_problem(answer):
            self._fail(problem)
            return
        self.outcomes[ANSWERED] += 1
        if rank is not None:  # Else it goes on, or has ended.
            rank.ras = answer

    def _fail(self, problem: str) -> None:
        """Count it; log each problem once in a row."""
        self.outcomes[FAILED] += 1
        text = "".join(letter if letter.isprintable() else "?" for letter in problem[:300])
        if text != self._problem:
            self._problem = text
            log.warning("NCCL's RAS: %s", text)


def _may_ask(rank: Rank, now_ns: int) -> bool:
    """Whether it is its job's first or last rank, and has made no progress for AFTER_NS."""
    if rank.snapshot is None or not rank.alive or rank.joined:
        return False
    is_chosen = rank.identity.rank in (0, rank.identity.world_size - 1)
    return is_chosen and now_ns - rank.progress_ns() >= AFTER_NS


def _kill(child: subprocess.Popen) -> None:
    if child.returncode is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
