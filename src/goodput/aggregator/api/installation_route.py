"""GET /api/v1/installation: whether the aggregator and the agents that push to it are well, for the page.

All figures are those of the aggregator's series about itself, but for the agents' versions.
"""

from __future__ import annotations

from fastapi import FastAPI, HTTPException, Request, Response
from msgspec import Struct

from goodput import __version__
from goodput.aggregator.accounts.slices import in_slices
from goodput.aggregator.api.exposition import Exposition
from goodput.aggregator.api.responses import access_of, json_of, json_response
from goodput.aggregator.ingest.ingest import Ingest
from goodput.metrics import Families

OFFSETS_LISTED_MAX = 64
# What is refused or dropped, by the series that counts it.
REFUSED = {
    "goodput_aggregator_reports_total": "push",
    "goodput_aggregator_requests_refused_total": "request",
    "goodput_aggregator_auth_failures_total": "authentication",
    "goodput_aggregator_token_refusals_total": "push of a token, by its bound",
    "goodput_aggregator_rank_rejections_total": "rank report",
    "goodput_aggregator_health_dropped_total": "hardware event",
    "goodput_aggregator_stack_samples_dropped_total": "sampled stacks",
    "goodput_aggregator_ledger_errors_total": "write to the ledger",
}
OFFSETS = "goodput_node_clock_offset_seconds"


class Refusal(Struct):
    """How many of one kind were refused or dropped for a reason since the aggregator's start."""

    what: str
    reason: str
    count: int


class ClockOffset(Struct):
    """How far a node's clock is ahead of the aggregator's, negative where it is behind."""

    node: str
    seconds: float


class LedgerState(Struct):
    """`bytes` is the size of the database; `runs` are in it alone, `runs_in_memory` in memory too."""

    bytes: int
    freed_bytes: int
    runs: int
    runs_in_memory: int


class Installation(Struct):
    """The state of an installation.

    `agents` are nodes that pushed in the last ten minutes, by the version of their agent; `bounds` used shares, at 1 of
    which something is refused or makes room; `expires` unix seconds by what expires; `failing_files` those whose newest
    version could not be loaded.
    """

    version: str
    agents: dict[str, int]
    bounds: dict[str, float]
    memory_bytes: float | None
    memory_limit_bytes: float | None
    ledger: LedgerState
    refused: list[Refusal]
    clock_offsets: list[ClockOffset]
    expires: dict[str, float]
    failing_files: list[str]


DOCUMENTS = (Installation,)


def add_installation_route(app: FastAPI, exposition: Exposition, ingest: Ingest) -> None:
    @app.get(
        "/api/v1/installation",
        responses=json_of(Installation) | {403: {"description": "the token is for some runs only"}},
        summary="The state of the aggregator and the agents: bounds, ledger, clocks, versions, refusals",
    )
    async def installation(request: Request) -> Response:
        """For tokens that may read all runs."""
        if not access_of(request).is_of_all:
            raise HTTPException(403, "the state of the installation needs a token for all runs")
        families = await in_slices(exposition.computing_own())
        return json_response(installation_of(families, ingest))


def installation_of(families: Families, ingest: Ingest) -> Installation:
    def one(name: str) -> float | None:
        return next((row[1] for row in families.rows.get(f"goodput_aggregator_{name}", ())), None)

    expiries = {what: one(f"{what}_expiry_timestamp_seconds") for what in ("token", "certificate")}
    return Installation(
        version=__version__,
        agents=dict(sorted(ingest.agents.count().items())),
        bounds={bound: share for (bound,), share in families.rows["goodput_aggregator_bound_used_ratio"]},
        memory_bytes=one("memory_bytes"),
        memory_limit_bytes=one("memory_limit_bytes"),
        ledger=LedgerState(
            bytes=int(one("ledger_bytes") or 0),
            freed_bytes=int(one("ledger_freed_bytes_total") or 0),
            runs=int(one("runs_stored") or 0),
            runs_in_memory=int(one("runs") or 0),
        ),
        refused=_refused(families),
        clock_offsets=_offsets(families),
        expires={what: at for what, at in expiries.items() if at is not None},
        failing_files=[
            file for (file,), failing in families.rows["goodput_aggregator_reload_failing"] if failing
        ],
    )


def _refused(families: Families) -> list[Refusal]:
    """The most frequent first."""
    found = [
        Refusal(what, ", ".join(values), int(count))
        for name, what in REFUSED.items()
        for values, count in families.rows.get(name, ())
        if count and values != ("accepted",)
    ]
    return sorted(found, key=lambda one: (-one.count, one.what, one.reason))


def _offsets(families: Families) -> list[ClockOffset]:
    """The largest first."""
    found = [ClockOffset(node, seconds) for (node,), seconds in families.rows.get(OFFSETS, ())]
    return sorted(found, key=lambda one: (-abs(one.seconds), one.node))[:OFFSETS_LISTED_MAX]
