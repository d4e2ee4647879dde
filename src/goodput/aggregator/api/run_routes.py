"""Routes of runs: the list, one run, its account in a window, rolling accounts and its timeline."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import FastAPI, HTTPException, Path, Query, Request, Response

from goodput.account.collectives.document_types import RankCollectives
from goodput.account.document import rank_collectives
from goodput.account.document_types import AccountDocument
from goodput.aggregator.accounts.accounts import Accounts, RunDocument
from goodput.aggregator.accounts.rank_phases import RankPhases, rank_phases
from goodput.aggregator.accounts.rolling import RollingWindows
from goodput.aggregator.accounts.run_summaries import RunPage, RunSummaries, StoredSummaries
from goodput.aggregator.accounts.slices import in_slices
from goodput.aggregator.accounts.stories import Stories
from goodput.aggregator.accounts.timelines.timeline import POINTS_MAX, Timeline
from goodput.aggregator.accounts.timelines.timeline_cache import TimelineCache
from goodput.aggregator.api.responses import (
    BUSY,
    NOT_FOUND,
    UnixSeconds,
    access_of,
    json_of,
    json_response,
    window_ns,
)
from goodput.story.document_types import Story

DOCUMENTS = (
    *(AccountDocument, RankCollectives, RankPhases, RollingWindows, RunDocument, RunPage, Story, Timeline),
)
RANKS_LISTED_MAX = 1024
RUNS_LISTED_MAX = 1000
SEARCH_CHARS_MAX = 128
POINTS = 120
_Limit = Annotated[int, Query(ge=1, le=RUNS_LISTED_MAX)]
_Offset = Annotated[int, Query(ge=0, le=1_000_000)]
_Ranks = Annotated[int, Query(ge=1, le=RANKS_LISTED_MAX)]
_Rank = Annotated[int, Path(ge=0, le=999_999_999)]
_Search = Annotated[str, Query(max_length=SEARCH_CHARS_MAX)]
_Order = Literal["newest", "open"]
_Points = Annotated[int, Query(ge=1, le=POINTS_MAX)]


def add_run_routes(
    app: FastAPI, accounts: Accounts, stories: Stories, stored: StoredSummaries | None = None
) -> TimelineCache:
    """The last of the routes under /runs/, since a run's name may contain slashes. Returns the cache of timelines."""
    summaries, timelines = RunSummaries(accounts, stored), TimelineCache(accounts)
    _add_story_route(app, stories)
    _add_rank_routes(app, accounts)

    @app.get(
        "/api/v1/runs",
        responses=json_of(RunPage),
        summary="Runs, newest first or those that are not over first",
    )
    async def runs(
        request: Request,
        limit: _Limit = RUNS_LISTED_MAX,
        offset: _Offset = 0,
        q: _Search = "",
        order: _Order = "newest",
    ) -> Response:
        """`q` is a part of the name, in any case. `total` counts all matches; `truncated` is true if more follow.

        With `order=open` runs that are not over, or have just ended, come before all others, the newest first of each.
        """
        return json_response(await summaries.page(limit, offset, q, access_of(request).may, order == "open"))

    @app.get(
        "/api/v1/runs/{run:run}/timeline",
        responses=json_of(Timeline) | NOT_FOUND | BUSY,
        summary="A run over time: GPU-seconds by state per bucket, marks, and its slowest ranks",
    )
    async def timeline(
        request: Request,
        run: str,
        points: _Points = POINTS,
        start: UnixSeconds = None,
        end: UnixSeconds = None,
    ) -> Response:
        """Each bucket's states sum to its `gpu_seconds`. `start` and `end` are unix seconds, as for the account."""
        query = timelines.get(run, points, window_ns(start, end), access_of(request).token_id)
        return json_response(await query)

    @app.get(
        "/api/v1/runs/{run:run}/account",
        responses=json_of(AccountDocument) | NOT_FOUND | BUSY,
        summary="A run's account in a window of its time",
    )
    async def account(
        request: Request, run: str, start: UnixSeconds = None, end: UnixSeconds = None
    ) -> Response:
        """`start` and `end` are unix seconds, by default the run's own; time outside of the run is not counted."""
        return json_response(await accounts.window(run, window_ns(start, end), access_of(request).token_id))

    @app.get(
        "/api/v1/runs/{run:run}/rolling",
        responses=json_of(RollingWindows) | NOT_FOUND | BUSY,
        summary="The last 5 minutes, hour and day of a run, and its lifetime, side by side",
    )
    async def rolling(request: Request, run: str) -> Response:
        return json_response(await accounts.rolling(run, access_of(request).token_id))

    @app.get(
        "/api/v1/runs/{run:run}",
        responses=json_of(RunDocument) | NOT_FOUND,
        summary="A run's account, factors, coverage and ranks",
    )
    async def run(run: str) -> Response:
        return json_response(await accounts.document(run))

    return timelines


def _add_story_route(app: FastAPI, stories: Stories) -> None:
    @app.get(
        "/api/v1/runs/{run:run}/story",
        responses=json_of(Story) | NOT_FOUND | BUSY,
        summary="What happened to a run, in order, what it cost, and how each of these is known",
    )
    async def story(request: Request, run: str) -> Response:
        return json_response(await stories.get(run, access_of(request).token_id))


def _add_rank_routes(app: FastAPI, accounts: Accounts) -> None:
    @app.get(
        "/api/v1/runs/{run:run}/collectives",
        responses=json_of(RankCollectives) | NOT_FOUND,
        summary="Each rank's exposed communication by process group and operation, in nanoseconds",
    )
    async def collectives(run: str, limit: _Ranks = 64, offset: _Offset = 0) -> Response:
        """`total` counts the ranks with time in `communication`, `straggler` and `bubble`, of which `offset` are skipped."""
        return json_response(rank_collectives(await accounts.latest(run), limit, offset))

    @app.get(
        "/api/v1/runs/{run:run}/ranks/{rank}/phases",
        responses=json_of(RankPhases) | NOT_FOUND,
        summary="The phases of a rank's newest attempt, beside the median of its group",
    )
    async def phases(run: str, rank: _Rank) -> Response:
        try:
            return json_response(await in_slices(rank_phases(accounts.store, run, rank)))
        except KeyError:
            raise HTTPException(404, f"no rank {rank} of run {run!r} has reported") from None
