"""What the routes share: parsing of times, bounded bodies, and JSON responses of msgspec types."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import HTTPException, Query, Request, Response
from starlette.responses import JSONResponse

from goodput.access.tokens import Access
from goodput.aggregator.fair_queue import RETRY_SECONDS

REFERENCE = "#/components/schemas/{name}"
# Beyond these a time is no unix seconds: years 1843 to 2096.
SECONDS_MAX = 4e9
_BOUNDS = {"exclusiveMinimum": -SECONDS_MAX, "exclusiveMaximum": SECONDS_MAX}
# The bounds are documented here and checked by `unix_ns`, which says what is wrong.
UnixSeconds = Annotated[float | None, Query(json_schema_extra=_BOUNDS)]
NOT_FOUND = {404: {"description": "no such run"}}
BUSY = {503: {"description": "busy"}}


def json_of(type_: type) -> dict:
    """A route's `responses` for 200 with this msgspec type; app.py adds its schema to the OpenAPI document."""
    return {
        200: {"content": {"application/json": {"schema": {"$ref": REFERENCE.format(name=type_.__name__)}}}}
    }


def json_response(value) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


async def unavailable(_request: Request, error: Exception) -> Response:
    """The answer to a request that may succeed a little later."""
    return JSONResponse({"detail": str(error)}, 503, {"Retry-After": str(RETRY_SECONDS)})


async def body_of(request: Request, bytes_max: int) -> bytes:
    """The body of a request; 413 for a larger one."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > bytes_max:
            raise HTTPException(413, f"the body is larger than {bytes_max} bytes")
    return body


def access_of(request: Request) -> Access:
    """What the request's token allows; set by the middleware."""
    return request.scope["access"]


def unix_ns(seconds: float) -> int:
    """Unix seconds as nanoseconds; 422 where they are out of range."""
    if not abs(seconds) < SECONDS_MAX:
        raise HTTPException(422, f"{seconds}: want unix seconds")
    return round(seconds * 1e9)


def window_ns(start: float | None, end: float | None) -> tuple[int | None, int | None]:
    """A window in unix ns, open where nothing was given; 422 where it ends before it starts."""
    start_ns, end_ns = (None if at is None else unix_ns(at) for at in (start, end))
    if start_ns is not None and end_ns is not None and start_ns >= end_ns:
        raise HTTPException(422, f"start {start} is not before end {end}")
    return start_ns, end_ns
