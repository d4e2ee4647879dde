"""The runs of this node, from their rank pages: no agent and no server is needed."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from goodput.account import FINAL_STATUSES
from goodput.progress.local_runs import LocalRun, LocalRuns
from goodput.top.gpus import AgentGpus
from goodput.top.model import Frame, History, RankRow, SourceError, run_row, run_view


class PageSource:
    """The runs whose pages are in `directories`; `agent` adds the GPUs' figures where this machine has one.

    `notes` are shown with those of pages that cannot be read.
    """

    def __init__(
        self,
        directories: list[str],
        stall_seconds: float,
        agent: AgentGpus | None = None,
        notes: Sequence[str] = (),
    ):
        self.directories = directories
        self.title = f"{os.uname().nodename} {', '.join(directories)}"
        self.local = LocalRuns(directories, stall_seconds)
        self._agent, self._history, self._notes = agent, History(), list(notes)

    def read(self, opened: str | None) -> Frame:
        """The runs, living ones first, and one in detail: `opened`, or the only one. Raises SourceError."""
        try:
            runs = self.local.read()
        except OSError as error:
            raise SourceError(f"{error.filename or self.directories[0]}: {error.strerror}") from None
        rows = [run_row(one.document) for one in runs]
        rows.sort(key=lambda row: (row.status in FINAL_STATUSES, row.run))
        living = [row.run for row in rows if row.status not in FINAL_STATUSES]
        name = opened or (rows[0].run if len(rows) == 1 or len(living) == 1 else None)
        chosen = next((one for one in runs if one.run.name == name), None)
        view = None
        if chosen is not None:
            view = run_view(chosen.document, chosen.pace, self._history, time.monotonic())
            self._add_processes(chosen, view.ranks)
        return Frame(self.title, time.time(), rows, view, self._notes + self.local.notes)

    def _add_processes(self, chosen: LocalRun, rows: list[RankRow]) -> None:
        run = chosen.run.name
        gpus = self._agent.of(run) if self._agent else {}
        for row in rows:
            page = self.local.pages.get((run, row.rank))
            if page and page.attempt.alive:
                row.pid = page.pid
            row.gpu, row.watts = gpus.get(row.rank, (None, None))
            row.recent = chosen.step_seconds(row.rank)
