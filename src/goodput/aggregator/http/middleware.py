"""ASGI middleware of every request: authentication, request metrics, security headers, errors. About 5 µs a request.

A run's name may contain slashes, written %2F in a URL: `runs/x%2Faccount` is the run `x/account`, and
`runs/x/account` the account of run `x`. URLs cannot have the names `.` and `..` in their path, and some proxies decode
%2F: `runs/-/account?run=..` is the account of the run `..`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from urllib.parse import parse_qs, unquote

from starlette.convertors import Convertor, register_url_convertor
from starlette.responses import JSONResponse, PlainTextResponse, Response

from goodput.access.responses import Refusal
from goodput.aggregator.http.authentication import RequestAuthenticator
from goodput.aggregator.http.headers import with_security_headers
from goodput.aggregator.http.limits import HEAD_BYTES_MAX, HEAD_TOO_LARGE
from goodput.aggregator.http.request_metrics import CLIENT_DISCONNECTED

log = logging.getLogger("goodput.aggregator")

RUNS = "/api/v1/runs/"
_ROUTES = {
    **{f"/api/v1/{name}": name for name in ("ingest", "runs", "health", "access")},
    "/api/v1/openapi.json": "schema",
    "/metrics": "metrics",
    "/healthz": "healthz",
    "/readyz": "readyz",
    # Browsers request the icon with the sign-in page.
    **dict.fromkeys(("/login", "/login.css", "/logout", "/favicon.ico"), "login"),
}
_JSON_ROUTES = frozenset(("runs", "run", "end", "health", "access", "schema"))
_REFUSAL_HEADERS = {
    303: {"location": "login"},
    401: {"www-authenticate": 'Bearer realm="goodput"'},
    429: {"retry-after": "60"},
    431: {"connection": "close"},
    503: {"retry-after": "5"},
}
# Replaces an escaped slash of a run's name until routing is done; names are printable, so none contains it.
_SLASH = "\x1f"
# In the scope of a request that another aggregator has authenticated, with its `access`. No client can set it.
FORWARDED = "goodput.forwarded"


class RunConvertor(Convertor[str]):
    """`{run:run}` in a route: a run's name, slashes included."""

    regex = ".+"

    def convert(self, value: str) -> str:
        return value.replace(_SLASH, "/")

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("run", RunConvertor())


class RequestMiddleware:
    """Sets `scope["access"]` to the client's Access, None on public routes."""

    def __init__(self, app, authenticator: RequestAuthenticator, check: Callable[[str], None]):
        """`check(route)` may raise Refusal too."""
        self._app, self._authenticator, self._check = app, authenticator, check

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send) if scope["type"] == "lifespan" else None
        start, status = time.perf_counter(), CLIENT_DISCONNECTED
        route, is_tls = _route_of(scope), scope["scheme"] == "https"

        async def send_secured(message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": with_security_headers(message["headers"], is_tls)}
            await send(message)

        try:
            self._check_head(scope)
            if not scope.get(FORWARDED):
                scope["access"] = self._authenticator.check_request(scope, route)
            self._check(route)
            if scope["method"] == "HEAD":  # The server leaves out the body.
                scope = {**scope, "method": "GET"}
            await self._app(scope, receive, send_secured)
        except Refusal as refusal:
            if refusal.reason == "starting":
                self._authenticator.metrics.refused["starting"] += 1
            await _answer(route, refusal)(scope, receive, send_secured)
        except Exception:
            log.exception("%s failed", route)
            if status != CLIENT_DISCONNECTED:
                raise
            await internal_error()(scope, receive, send_secured)
        finally:
            self._authenticator.metrics.observe(route, status, time.perf_counter() - start)

    def _check_head(self, scope) -> None:
        """The connection bounds heads that arrive in pieces; one that came in a single read is seen here first."""
        size = len(scope["raw_path"]) + len(scope["query_string"])
        if size + sum([len(name) + len(value) for name, value in scope["headers"]]) > HEAD_BYTES_MAX:
            self._authenticator.metrics.refused["head"] += 1
            raise Refusal("head", HEAD_TOO_LARGE.strip())


def internal_error() -> Response:
    return PlainTextResponse("internal error; see the aggregator's log\n", 500)


def _route_of(scope) -> str:
    path = scope["path"]
    route = _ROUTES.get(path)
    if route is not None:
        return route
    if path.startswith(RUNS):
        if b"%2" in scope["raw_path"]:
            # Decoded again: in `path` an escaped slash looks like any other.
            raw = scope["raw_path"].decode("ascii", "replace").replace("%2F", "%1F").replace("%2f", "%1F")
            scope["path"] = unquote(raw)
        if b"run=" in scope["query_string"]:
            scope["path"] = _with_run(scope["path"], scope["query_string"])
        return "end" if scope["method"] == "POST" else "run"
    return "page" if path.count("/") == 1 or path.startswith("/scripts/") else "other"


def _answer(route: str, refusal: Refusal) -> Response:
    headers = _REFUSAL_HEADERS.get(refusal.status)
    if route in _JSON_ROUTES:
        return JSONResponse({"detail": str(refusal)}, refusal.status, headers)
    return PlainTextResponse(f"{refusal}\n", refusal.status, headers)


def _with_run(path: str, query: bytes) -> str:
    """The path with the run's name that the query has, if it has one."""
    names = parse_qs(query.decode("ascii", "replace")).get("run")
    if not names:
        return path
    _, slash, rest = path[len(RUNS) :].partition("/")
    return RUNS + names[-1].replace("/", _SLASH) + slash + rest
