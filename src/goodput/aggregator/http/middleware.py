"""What stands between the server and the app: every request passes here, in and out.

In: ASGI. Out: ASGI, with `scope["access"]` saying who asks. It names the route, asks the door, counts and times the
answer, adds the security headers, and answers 500 in one line where the app raised. About 5 µs per request.

A run's name may hold slashes. In an address they are written %2F, as browsers and libraries do; what is behind the
name, as /account, is not. So `runs/x%2Faccount` is the run `x/account` and `runs/x/account` the account of `x`.
"""

from __future__ import annotations

import json
import logging
import time
from urllib.parse import unquote

from starlette.convertors import Convertor, register_url_convertor

from goodput.aggregator.http.authentication import Closed, Door
from goodput.aggregator.http.headers import secured

log = logging.getLogger("goodput.aggregator")

RUNS = "/api/v1/runs/"
_ROUTES = {
    "/api/v1/ingest": "ingest",
    "/api/v1/runs": "runs",
    "/api/v1/health": "health",
    "/api/v1/access": "access",
    "/api/v1/openapi.json": "schema",
    "/metrics": "metrics",
    "/healthz": "healthz",
    "/login": "login",
    "/login.css": "login",
    "/logout": "login",
    # Browsers ask for it on the way to signing in.
    "/favicon.ico": "login",
}
# Stands for a slash within a run's name on its way to the route; names are printable, so it is in none.
_SLASH = "\x1f"
DISCONNECTED = 499


class RunConvertor(Convertor[str]):
    """`{run:run}` of a route: a run's name, slashes and all."""

    regex = ".+"

    def convert(self, value: str) -> str:
        return value.replace(_SLASH, "/")

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("run", RunConvertor())


class Guard:
    def __init__(self, app, door: Door):
        self._app, self._door = app, door

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send) if scope["type"] == "lifespan" else None
        began, status = time.perf_counter(), DISCONNECTED
        route = _route_of(scope)
        is_tls = scope["scheme"] == "https"

        async def answer(message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": secured(message["headers"], is_tls)}
            await send(message)

        try:
            scope["access"] = self._door.enter(scope, route)
            await self._app(scope, receive, answer)
        except Closed as closed:
            await _refuse(answer, route, closed)
        except Exception:
            log.exception("%s failed", route)
            if status != DISCONNECTED:
                raise
            await _send(answer, 500, [], b"this failed; the aggregator's log says why\n", b"text/plain")
        finally:
            self._door.requests.observe(route, status, time.perf_counter() - began)


def _route_of(scope) -> str:
    path = scope["path"]
    route = _ROUTES.get(path)
    if route is not None:
        return route
    if path.startswith(RUNS):
        if b"%2" in scope["raw_path"]:
            # Decoded again, since in `path` a slash of a name is like any other.
            raw = scope["raw_path"].decode("ascii", "replace").replace("%2F", "%1F").replace("%2f", "%1F")
            scope["path"] = unquote(raw)
        return "end" if scope["method"] == "POST" else "run"
    return "page" if path.count("/") == 1 else "other"


async def _refuse(send, route: str, closed: Closed) -> None:
    more = {
        303: [(b"location", b"login")],
        401: [(b"www-authenticate", b'Bearer realm="goodput"')],
        429: [(b"retry-after", b"60")],
    }
    headers, text = more.get(closed.status, []), str(closed)
    if route in ("runs", "run", "end", "health", "access", "schema"):
        body, kind = json.dumps({"detail": text}).encode(), b"application/json"
    else:
        body, kind = f"{text}\n".encode(), b"text/plain; charset=utf-8"
    await _send(send, closed.status, headers, body, kind)


async def _send(send, status: int, headers: list, body: bytes, content_type: bytes) -> None:
    headers = [(b"content-type", content_type), (b"content-length", str(len(body)).encode()), *headers]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
