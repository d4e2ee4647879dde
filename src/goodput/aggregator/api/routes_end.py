"""The route by which a run is said to be over.

In: POST with a small JSON object, from whoever may push for the run. Out: what was ended, as JSON; 400 or 413 for a body
that is none, 422 for a value that cannot be meant, 404 for no such run, 409 while ranks live, 503 where the ledger cannot
be written. It does not know what follows (ending.py).
"""

from __future__ import annotations

import time
from typing import Literal

import msgspec
from fastapi import FastAPI, HTTPException, Request, Response
from pydantic import BaseModel

from goodput.aggregator.api.responses import in_json, no_run, unix_ns
from goodput.aggregator.http.limits import END_BYTES_MAX
from goodput.aggregator.ingest.run_end import AHEAD_SECONDS, REASONS, Alive, Ending
from goodput.aggregator.ledger.ledger import LedgerError


class End(BaseModel):
    """`at` is in unix seconds: no rank ends before it, nor before it was last seen alive."""

    reason: Literal["finished", "failed", "cancelled"] = "cancelled"
    at: float | None = None
    force: bool = False


class Ended(BaseModel):
    """How many ranks' ends this told, had told their own, were seen alive lately, and were said to be over before."""

    run: str
    reason: str
    ended: int
    known: int
    alive: int
    already: int


class _Asked(msgspec.Struct, forbid_unknown_fields=True):
    reason: str = "cancelled"
    at: float | None = None
    force: bool = False


def add_end(app: FastAPI, ending: Ending) -> None:
    """Before the route of one run, whose name may hold slashes."""

    @app.post(
        "/api/v1/runs/{run:run}/end",
        responses={
            200: {"model": Ended},
            400: {"description": "no JSON object"},
            403: {"description": "the token does not push, or not for this run"},
            404: {"description": "no such run"},
            409: {"description": "ranks are alive, and `force` was not given"},
            413: {"description": "too large"},
            422: {"description": "an unknown field or value"},
            503: {"description": "the ledger cannot be written"},
        },
        openapi_extra={"requestBody": {"content": {"application/json": {"schema": End.model_json_schema()}}}},
        summary="Say that a run is over; takes a token of scope ingest",
    )
    async def end(request: Request, run: str) -> Response:
        """What came before stays as it was; from each rank's last sign of life on nothing accrues. A new attempt,
        or one that shows life later, goes on."""
        asked = _asked(await _body(request))
        try:
            found = await ending.end(
                run, asked.reason, at_ns=_at_ns(asked), force=asked.force, who=request.scope["access"].name
            )
        except KeyError:
            raise no_run(run) from None
        except Alive as alive:
            raise HTTPException(409, str(alive)) from None
        except LedgerError as error:
            raise HTTPException(503, str(error)) from None
        return in_json({"run": run, "reason": asked.reason, **found})


async def _body(request: Request) -> bytes:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > END_BYTES_MAX:
            raise HTTPException(413, f"the body is larger than {END_BYTES_MAX} bytes")
    return body


def _asked(body: bytes) -> _Asked:
    try:
        asked = msgspec.json.decode(body or b"{}", type=_Asked)
    except msgspec.ValidationError as error:
        raise HTTPException(422, str(error)) from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise HTTPException(400, f"want a JSON object, or nothing: {error}") from None
    if asked.reason not in REASONS:
        raise HTTPException(422, f"reason {asked.reason[:40]!r}: want one of {', '.join(REASONS)}")
    return asked


def _at_ns(asked: _Asked) -> int:
    if asked.at is None:
        return 0
    at_ns = unix_ns(asked.at)
    if asked.at < 0 or asked.at > time.time() + AHEAD_SECONDS:
        raise HTTPException(422, f"at {asked.at}: want unix seconds that have passed")
    return at_ns
