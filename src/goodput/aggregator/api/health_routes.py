"""Routes of hardware health events: of all nodes, and of one run."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import FastAPI, Query, Request, Response

from goodput.aggregator.accounts.health_costs import HealthCosts, HealthEvents, RunHealthEvents
from goodput.aggregator.api.responses import (
    NOT_FOUND,
    UnixSeconds,
    access_of,
    json_of,
    json_response,
    unix_ns,
)

DOCUMENTS = (HealthEvents, RunHealthEvents)
EVENTS_LISTED, EVENTS_LISTED_MAX = 100, 1000
_Severity = Literal["info", "warning", "critical"]
_Limit = Annotated[int, Query(ge=1, le=EVENTS_LISTED_MAX)]


def add_health_routes(app: FastAPI, health: HealthCosts) -> None:
    """Before the route of one run, since a run's name may contain slashes."""

    @app.get(
        "/api/v1/health", responses=json_of(HealthEvents), summary="Hardware health events, newest first"
    )
    async def of_nodes(
        request: Request,
        run: str | None = None,
        node: str | None = None,
        severity: _Severity | None = None,
        since: UnixSeconds = None,
        limit: _Limit = EVENTS_LISTED,
    ) -> Response:
        """XIDs, ECC errors, links that went down and the like. `since` is in unix seconds."""
        since_ns = 0 if since is None else unix_ns(since)
        filters = {"limit": limit, "node": node, "severity": severity, "since_ns": since_ns}
        return json_response(await health.all(run, access_of(request), **filters))

    @app.get(
        "/api/v1/runs/{run:run}/health",
        responses=json_of(RunHealthEvents) | NOT_FOUND,
        summary="Hardware health events that hit a run, newest first, and what they cost",
    )
    async def of_run(
        run: str,
        severity: _Severity | None = None,
        since: UnixSeconds = None,
        limit: _Limit = EVENTS_LISTED,
    ) -> Response:
        """`gpu_seconds` is the cost of the restarts that are attributed to an event; see the schema."""
        since_ns = 0 if since is None else unix_ns(since)
        return json_response(await health.of_run(run, limit=limit, severity=severity, since_ns=since_ns))
