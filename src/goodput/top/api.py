"""The runs of a cluster, from an aggregator's API: the list, and the document of the opened one."""

from __future__ import annotations

import time
from typing import Any

from goodput.account import FINAL_STATUSES
from goodput.progress.local_runs import Pace
from goodput.top.model import Frame, History, RunRow, SourceError, run_view
from goodput_exporters.push.client import AggregatorClient, run_path
from goodput_exporters.push.credentials import Credentials, Unreachable

RUNS_MAX, SECONDS_MAX, ANSWER_BYTES_MAX = 200, 10.0, 256 << 20


class ApiSource:
    """The aggregator at `url`; its runs that are not over come first."""

    def __init__(self, url: str, credentials: Credentials):
        self.title = url.rstrip("/")
        self.client = AggregatorClient(url, credentials, ANSWER_BYTES_MAX)
        self._history = History()

    def read(self, opened: str | None) -> Frame:
        """The list of runs, and one in detail: `opened`, or the only one that is not over. Raises SourceError."""
        try:
            return self._read(opened)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise SourceError(
                f"{self.title}: unexpected answer ({type(error).__name__}: {error}); is it an aggregator of this version?"
            ) from error

    def _read(self, opened: str | None) -> Frame:
        page = self._get(f"/api/v1/runs?limit={RUNS_MAX}&order=open")
        notes = [f"{page['total'] - len(page['runs'])} more runs are not shown"] if page["truncated"] else []
        rows = [_row(one) for one in page["runs"]]
        living = [row.run for row in rows if row.status not in FINAL_STATUSES]
        name = opened or (living[0] if len(living) == 1 else rows[0].run if len(rows) == 1 else None)
        view = None
        if name is not None:
            document = self._get(run_path(name), missing=f"no run {name}")
            view = run_view(document, _pace(document), self._history, time.monotonic())
        return Frame(self.title, time.time(), rows, view, notes)

    def _get(self, path: str, missing: str = "") -> dict[str, Any]:
        try:
            answer = self.client.get(path, SECONDS_MAX)
        except Unreachable as error:
            raise SourceError(f"{self.title}: {self.client.explain(error)}") from None
        if answer.status == 404 and missing:
            raise SourceError(missing)
        if answer.status != 200:
            raise SourceError(f"{self.title}: HTTP {answer.status}: {answer.text[:300]}")
        found = answer.document()
        if found is None:
            raise SourceError(f"{self.title}: the server at this address is not an aggregator")
        return found


def _row(summary: dict[str, Any]) -> RunRow:
    return RunRow(
        run=summary["run"],
        status=summary["status"],
        ranks=summary["world_size"],
        seconds=summary["end"] - summary["start"],
        goodput=summary["goodput"],
        restarts=summary["restarts"],
        cause=summary["leading_cause"],
        hang=summary["hang"],
    )


def _pace(document: dict[str, Any]) -> Pace:
    """Steps of all ranks in ten seconds and in the last five minutes, per rank; medians of step time."""
    windows, ranks = document["windows"], sum(one["step"] is not None for one in document["live"])
    newest = [one for one in windows["discrete"][-6:] if one["steps"]]
    rates = [one["steps_per_second"] for one in newest if one["steps_per_second"] is not None]
    rate = sum(rates) / len(rates) / ranks if rates and ranks else None
    medians = [one["step_seconds"]["p50"] for one in windows["discrete"]]
    return Pace(rate, medians, "median of every 10 s, last 5 min")
