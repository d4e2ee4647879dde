"""Samples the stacks of this node's ranks while they are in no phase; see goodput.stack_samples.

The counts are in the file beside the rank's page, from which the collector `ranks` reports them. A thread of its own
waits for py-spy; it is started with the first rank to sample.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from goodput.rank_page.page import PageError
from goodput.stack_samples.py_spy import Recorder, find_py_spy
from goodput.stack_samples.sampler import StackSampler
from goodput_exporters.system.processes import Processes

if TYPE_CHECKING:
    # Not imported at run time: a collector that cannot be imported must not end the agent.
    from goodput_exporters.collectors.ranks.rank import Rank

# `goodput run` on this node samples its ranks itself, and is the first to do so.
DELAY_SECONDS = 10.0

log = logging.getLogger("goodput.node")


class StackSampling:
    def __init__(self, procfs: str = "/proc", command: str | None = None):
        self._sampler = StackSampler(Recorder(command or find_py_spy()), DELAY_SECONDS)
        self._processes = Processes(procfs)
        self._orders: queue.Queue[tuple[str, int, Callable[[], str]] | None] = queue.Queue()
        self._busy = threading.Event()
        self._thread: threading.Thread | None = None
        self._has_failed = False

    def poll(self, ranks: list[Rank]) -> None:
        """Look at the living ranks, and order a burst if one is due. Called once a poll, by one thread."""
        if self._busy.is_set():
            return
        by_path = {rank.reader.path: rank for rank in ranks}
        snapshots = [(path, rank.snapshot) for path, rank in by_path.items() if rank.snapshot is not None]
        path = self._sampler.choose(snapshots)
        if path is None:
            return
        process = by_path[path].process()
        # 0 where its process is in a PID namespace that is not seen from here; the recording says so.
        pid = self._processes.find([process]).get(process, 0)
        named = pid or by_path[path].named_pid()
        self._busy.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="stack samples", daemon=True)
            self._thread.start()
        self._orders.put((path, pid, lambda: self._processes.problem(process, named) if named else ""))

    def stop(self) -> None:
        """End the child process, if there is one, without waiting for it."""
        self._sampler.stop()
        self._orders.put(None)

    def outcomes(self) -> dict[str, int]:
        """Bursts so far by outcome."""
        return dict(self._sampler.outcomes)

    def collect(self, families) -> None:
        families.add_counts("goodput_node_stack_bursts_total", "outcome", self.outcomes())
        families.add("goodput_node_stack_bursts_cpu_seconds_total", {}, self._sampler.cpu_seconds)

    def _run(self) -> None:
        while (order := self._orders.get()) is not None:
            try:
                self._sampler.sample(*order)
            except (PageError, OSError) as error:
                # The page is gone, or its folder is another user's.
                if not self._has_failed:
                    self._has_failed = True
                    log.warning("stacks of %s cannot be sampled: %s", order[0], error)
            finally:
                self._busy.clear()
