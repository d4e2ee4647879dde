"""POST /api/v1/runs/RUN/end: mark a run as ended. Takes a token that may push reports of the run."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from fastapi import FastAPI, HTTPException, Request, Response

from goodput.access.audit import AuditLog
from goodput.account import END_REASONS
from goodput.aggregator.api.responses import (
    REFERENCE,
    access_of,
    body_of,
    json_of,
    json_response,
    unix_ns,
)
from goodput.aggregator.http.authentication import address_of
from goodput.aggregator.http.limits import END_BYTES_MAX
from goodput.aggregator.ingest.run_end import AHEAD_SECONDS, EndResult, RanksAlive, RunEnder


class EndRequest(msgspec.Struct, forbid_unknown_fields=True):
    """`at` is in unix seconds: the run does not end before it, nor before a rank was last seen alive."""

    reason: Literal["finished", "failed", "cancelled"] = "cancelled"
    at: Annotated[float, msgspec.Meta(extra_json_schema={"minimum": 0})] | None = None
    force: bool = False


DOCUMENTS = (EndRequest, EndResult)
_BODY = {"content": {"application/json": {"schema": {"$ref": REFERENCE.format(name="EndRequest")}}}}


def add_end_route(app: FastAPI, ender: RunEnder, audit: AuditLog) -> None:
    """Before the route of one run, since a run's name may contain slashes."""

    @app.post(
        "/api/v1/runs/{run:run}/end",
        responses={
            **json_of(EndResult),
            400: {"description": "the body is not a JSON object"},
            403: {"description": "the token may not push reports, or not of this run"},
            404: {"description": "no such run"},
            409: {"description": "ranks are alive, and `force` was not given"},
            413: {"description": "the body is too large"},
            422: {"description": "an unknown field or an invalid value"},
            503: {"description": "the ledger cannot be written"},
        },
        openapi_extra={"requestBody": _BODY},
        summary="Mark a run as ended; takes a token of scope ingest",
    )
    async def end(request: Request, run: str) -> Response:
        """No time is counted from the last sign of life on, or from `at`. A rank that reports life later, or a new
        attempt, continues the run."""
        body = _decode(await body_of(request, END_BYTES_MAX))
        try:
            result = await ender.end(
                run,
                body.reason,
                at_ns=_at_ns(body.at, ender.clock_ns()),
                force=body.force,
                client=access_of(request).name,
            )
        except RanksAlive as alive:
            audit.event("end_refused", run=run, text=str(alive), **_who(request))
            raise HTTPException(409, str(alive)) from None
        counts = {"ended": result.ended, "alive": result.alive, "force": body.force}
        audit.event("end", run=run, reason=body.reason, **counts, **_who(request))
        return json_response(result)


def _who(request: Request) -> dict[str, str]:
    access = access_of(request)
    return {"token": access.name, "token_id": access.token_id, "address": address_of(request.scope)}


def _decode(body: bytes) -> EndRequest:
    try:
        return msgspec.json.decode(body or b"{}", type=EndRequest)
    except msgspec.ValidationError as error:
        hint = f"; want one of {', '.join(END_REASONS)}" if "$.reason" in str(error) else ""
        raise HTTPException(422, f"{error}{hint}") from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise HTTPException(400, f"want a JSON object or an empty body: {error}") from None


def _at_ns(at: float | None, now_ns: int) -> int:
    if at is None:
        return 0
    at_ns = unix_ns(at)
    if not 0 <= at <= now_ns / 1e9 + AHEAD_SECONDS:
        raise HTTPException(422, f"at {at}: want unix seconds in the past")
    return at_ns
