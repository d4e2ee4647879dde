"""The tools of the MCP server: each method of Tools is one, its docstring what an assistant reads about it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any

from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from goodput.mcp import answers, comparison, summaries
from goodput.mcp.read_api import ApiError, ReadApi

RUN_CHARS_MAX = 128
Run = Annotated[
    str, Field(min_length=1, max_length=RUN_CHARS_MAX, description="exact name of a run, from list_runs")
]
Time = Annotated[
    str | float | None,
    Field(
        description="ISO 8601 such as 2026-05-01T08:30:00Z, or unix seconds; default: the run's own start or end"
    ),
]
LastMinutes = Annotated[
    float | None,
    Field(gt=0, le=1e6, description="only the last minutes of the run; instead of start and end"),
]
EVENTS_MAX, RUNS_MAX, POINTS_MAX = 100, 100, 60


def answering(tool: Callable[..., Any]) -> Callable[..., Any]:
    """Errors of the API as errors of the tool; an answer without a field that is needed says so."""

    @functools.wraps(tool)
    def answered(*given: Any, **named: Any) -> Any:
        try:
            return tool(*given, **named)
        except ApiError as error:
            raise ToolError(str(error)) from error
        except (KeyError, TypeError, IndexError) as error:
            raise ToolError(
                f"unexpected answer of the aggregator ({type(error).__name__}: {error}); are it and goodput mcp of one version?"
            ) from error

    return answered


class Tools:
    def __init__(self, api: ReadApi):
        self._api = api

    @answering
    def list_runs(
        self,
        search: Annotated[str, Field(max_length=RUN_CHARS_MAX, description="a part of the name")] = "",
        open_first: Annotated[
            bool, Field(description="list runs that are not over before all others")
        ] = False,
        limit: Annotated[int, Field(ge=1, le=RUNS_MAX)] = 20,
        offset: Annotated[int, Field(ge=0, le=1_000_000)] = 0,
    ) -> answers.Runs:
        """Training runs, newest first, with their goodput, waste, leading cause and whether they hang. Start here."""
        order = "open" if open_first else "newest"
        page = self._api.get("/api/v1/runs", q=search, order=order, limit=limit, offset=offset)
        rows = [summaries.run_row(run) for run in page["runs"]]
        following = offset + limit if page["truncated"] else None
        return answers.Runs(runs=rows, total=page["total"], next_offset=following)

    @answering
    def get_account(
        self, run: Run, start: Time = None, end: Time = None, last_minutes: LastMinutes = None
    ) -> answers.Account:
        """Where the GPU time of a run, or of a window of it, went: every state, goodput, MFU, restarts, cost."""
        found, is_window = self._account(run, start, end, last_minutes)
        return summaries.account(found, is_window)

    @answering
    def get_causes(
        self, run: Run, start: Time = None, end: Time = None, last_minutes: LastMinutes = None
    ) -> answers.Causes:
        """What to change in a run to lose less GPU time: causes in the order in which to act, each with advice and gain."""
        return summaries.causes(self._account(run, start, end, last_minutes)[0])

    @answering
    def get_stragglers(
        self, run: Run, start: Time = None, end: Time = None, last_minutes: LastMinutes = None
    ) -> answers.Stragglers:
        """Ranks, hosts and pipeline stages that the others wait for, why, and since which step."""
        return summaries.stragglers(self._account(run, start, end, last_minutes)[0])

    @answering
    def get_hang(self, run: Run) -> answers.Hangs:
        """Whether a run hangs, because of which rank, and what its ranks are doing now."""
        return summaries.hangs(self._api.run(run))

    @answering
    def get_rank(self, run: Run, rank: Annotated[int, Field(ge=0)]) -> answers.RankAnswer:
        """One rank: where its GPU time went, and what it is doing now."""
        found = summaries.rank(self._api.run(run), rank)
        if found is None:
            raise ToolError(f"run {run!r} has no report of rank {rank}")
        return found

    @answering
    def get_timeline(
        self,
        run: Run,
        points: Annotated[int, Field(ge=1, le=POINTS_MAX, description="number of equal parts")] = 24,
        start: Time = None,
        end: Time = None,
        last_minutes: LastMinutes = None,
    ) -> answers.Timeline:
        """Goodput and the largest loss over time, with restarts, stalls and checkpoints: when did a run become worse."""
        window = self._window(run, start, end, last_minutes)
        return summaries.timeline(self._api.run(run, "timeline", points=points, **window))

    @answering
    def get_story(self, run: Run) -> answers.Story:
        """What happened to a run, in order: restarts, stalls, slow ranks, hardware errors, changes of pace; each with its cost."""
        return summaries.story(self._api.run(run, "story"))

    @answering
    def compare_runs(self, base: Run, new: Run) -> answers.Comparison:
        """Seconds per kept step of two runs and the change by state. Without intervals: `goodput compare` computes those."""
        return comparison.compare(self._api.run(base, "account"), self._api.run(new, "account"))

    @answering
    def list_health_events(
        self,
        run: Annotated[
            str,
            Field(max_length=RUN_CHARS_MAX, description="only those that hit this run; default: all nodes'"),
        ] = "",
        limit: Annotated[int, Field(ge=1, le=EVENTS_MAX)] = 20,
    ) -> answers.HealthEvents:
        """Errors of GPUs and network links (XIDs, ECC, link flaps) with the restarts they caused, newest first."""
        found = self._api.run(run, "health") if run else self._api.get("/api/v1/health")
        return summaries.health_events(found["events"], limit)

    def _account(
        self, run: str, start: str | float | None, end: str | float | None, last_minutes: float | None
    ) -> tuple[dict[str, Any], bool]:
        """The account, and whether it is of a window."""
        window = self._window(run, start, end, last_minutes)
        return (self._api.run(run, "account", **window), True) if window else (self._api.run(run), False)

    def _window(
        self, run: str, start: str | float | None, end: str | float | None, last_minutes: float | None
    ) -> dict[str, float]:
        window = {
            name: unix_seconds(name, at) for name, at in (("start", start), ("end", end)) if at is not None
        }
        if last_minutes is None:
            return window
        if window:
            raise ToolError("last_minutes excludes start and end")
        known = self._api.run(run)
        return {"start": max(known["start"], known["end"] - 60 * last_minutes), "end": known["end"]}


TOOLS = tuple(name for name in vars(Tools) if not name.startswith("_"))


def unix_seconds(name: str, at: str | float) -> float:
    """A time in ISO 8601, in UTC unless it names a zone, or in unix seconds."""
    try:
        return float(at)
    except ValueError:
        pass
    try:
        # Python 3.10 does not parse Z.
        shown = str(at).strip().replace("Z", "+00:00").replace("z", "+00:00")
        found = datetime.fromisoformat(shown)
        return (found if found.tzinfo else datetime.fromisoformat(f"{found.isoformat()}+00:00")).timestamp()
    except (ValueError, OverflowError, OSError):
        raise ToolError(f"{name}: {str(at)[:64]!r} is no time such as 2026-05-01T08:30:00Z") from None
