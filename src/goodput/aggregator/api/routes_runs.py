"""The routes of the list of runs and of a run over time; both are asked again and again by every open page.

In: HTTP. Out: JSON as models_runs.py has it. A page of the list costs a look-up per run, and an
account of those alone that changed.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import FastAPI, Query, Request, Response

from goodput.aggregator.accounts.accounts import Accounts
from goodput.aggregator.accounts.run_summaries import RunSummaries
from goodput.aggregator.accounts.timeline import POINTS_MAX
from goodput.aggregator.accounts.timeline_cache import TimelineCache
from goodput.aggregator.api import models_runs as models
from goodput.aggregator.api.responses import found, in_json, window_ns

RUNS_LISTED_MAX = 1000
QUERY_CHARACTERS_MAX = 128
_Limit = Annotated[int, Query(ge=1, le=RUNS_LISTED_MAX)]
_Offset = Annotated[int, Query(ge=0, le=1_000_000)]
_Search = Annotated[str, Query(max_length=QUERY_CHARACTERS_MAX)]
_Points = Annotated[int, Query(ge=1, le=POINTS_MAX)]
POINTS = 120


def add_runs(app: FastAPI, accounts: Accounts) -> None:
    """Before the route of one run, whose name may hold slashes."""
    summaries, timelines = RunSummaries(accounts), TimelineCache(accounts)

    @app.get("/api/v1/runs", responses={200: {"model": models.Runs}}, summary="Runs, newest first")
    async def runs(
        request: Request, limit: _Limit = RUNS_LISTED_MAX, offset: _Offset = 0, q: _Search = ""
    ) -> Response:
        """`q` is a part of the name, in any case. `total` counts all that match; `truncated` says there are more."""
        return in_json(await summaries.page(limit, offset, q, request.scope["access"].may))

    @app.get(
        "/api/v1/runs/{run:run}/timeline",
        responses={
            200: {"model": models.Timeline},
            404: {"description": "no such run"},
            503: {"description": "busy"},
        },
        summary="A run over time: GPU-seconds by state per bucket, marks, and its slowest ranks",
    )
    async def timeline(
        request: Request,
        run: str,
        points: _Points = POINTS,
        start: float | None = None,
        end: float | None = None,
    ) -> Response:
        """Each bucket's states sum to its `gpu_seconds`. `start` and `end` are unix seconds, as for the account."""
        coming = timelines.of(run, points, window_ns(start, end), request.scope["access"].token_id)
        return in_json(await found(run, coming))
