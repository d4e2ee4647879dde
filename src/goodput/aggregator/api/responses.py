"""What the routes share: how a time is asked for, how an answer is written, and what an error of the accounts becomes.

In: what FastAPI has read of a request. Out: a Response, or an HTTPException with its status and line.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

import msgspec
from fastapi import HTTPException, Response

from goodput.aggregator.accounts.history import HistoryError

T = TypeVar("T")


def in_json(value) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


def unix_ns(seconds: float) -> int:
    """Unix seconds as nanoseconds; 422 where they cannot be meant."""
    if not abs(seconds) < 4e9:
        raise HTTPException(422, f"{seconds}: want unix seconds")
    return round(seconds * 1e9)


def window_ns(start: float | None, end: float | None) -> tuple[int | None, int | None]:
    """A window in unix ns, open where nothing was given; 422 where it ends before it starts."""
    window = tuple(None if at is None else unix_ns(at) for at in (start, end))
    if None not in window and window[0] >= window[1]:
        raise HTTPException(422, f"start {start} is not before end {end}")
    return window


def no_run(run: str) -> HTTPException:
    return HTTPException(404, f"no run {run!r}")


async def found(run: str, coming: Awaitable[T]) -> T:
    """What comes of a run, or the status that says why it does not."""
    try:
        return await coming
    except KeyError:
        raise no_run(run) from None
    except HistoryError as error:
        raise HTTPException(503, str(error)) from None
