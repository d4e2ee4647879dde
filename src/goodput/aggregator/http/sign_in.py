"""Signing in with a browser, and out: a form that takes a read token and gives a cookie.

In: the form of login.html. Out: a session's cookie that no script can read and no other site can send, for
limits.SESSION_SECONDS. The token itself stays nowhere: not in the browser, not in an address, not in a log.
Also GET /api/v1/access, which says who one is.
"""

from __future__ import annotations

import importlib.resources
from urllib.parse import parse_qs

from fastapi import FastAPI, Request, Response

from goodput.access.token_cache import Denied
from goodput.aggregator.api.models import Model
from goodput.aggregator.http.authentication import (
    PLAIN_COOKIE,
    SECURE_COOKIE,
    Closed,
    Door,
    cookie_of,
    is_secure,
)
from goodput.aggregator.http.headers import PAGE_POLICY
from goodput.aggregator.http.limits import LOGIN_BYTES_MAX, SESSION_SECONDS
from goodput.aggregator.http.sessions import Full

_PAGE_HEADERS = {"Content-Security-Policy": PAGE_POLICY}
_PROBLEM = "<!--problem-->"
# What may stand in the place of the mark: these and nothing that came from outside.
_PROBLEMS = {
    "missing": "Enter a token.",
    "malformed": "This is no token of goodput. One looks like goodput_read_1f2e… and has 84 characters.",
    "unknown": "This token is not known here, or was revoked.",
    "expired": "This token has expired.",
    "scope": "This token does not read runs. Signing in takes one of scope read.",
    "sessions": "As many browsers as may be are signed in with this token, from other addresses. Sign out in one of them, "
    "or ask for a token of your own.",
    "throttled": "Too many tries from your address. Wait a minute.",
    "open": "No tokens are asked for here.",
}


class WhoAsks(Model):
    """Whose token it is, what it is for, and whether it is a browser that signed in and so may sign out."""

    name: str
    scopes: list[str]
    runs: list[str]
    session: bool


def add_routes(app: FastAPI, door: Door) -> None:
    folder = importlib.resources.files("goodput.aggregator") / "page"
    form = (folder / "login.html").read_text(encoding="utf-8")
    style = (folder / "login.css").read_bytes()

    def page(status: int, problem: str = "") -> Response:
        text = form.replace(_PROBLEM, _PROBLEMS.get(problem, ""))
        return Response(text, status, media_type="text/html", headers=_PAGE_HEADERS)

    @app.api_route("/login", methods=["GET", "HEAD"], include_in_schema=False)
    async def show() -> Response:
        return page(200) if door.keeper else _home()

    @app.get("/login.css", include_in_schema=False)
    async def css() -> Response:
        return Response(style, media_type="text/css", headers={"Cache-Control": "no-cache"})

    @app.post("/login", include_in_schema=False)
    async def sign_in(request: Request) -> Response:
        if not door.keeper:
            return _home()
        try:
            token = await _token(request)
            access = door.keeper.access(token)
            if "read" not in access.scopes:
                raise Denied("scope", f"the token {access.name} does not read")
        except Denied as denied:
            closed: Closed = door.closed(request.scope, denied)
            return page(closed.status, closed.reason)
        try:
            cookie = door.sessions.begin(access, request.client.host if request.client else "")
        except Full:
            door.requests.refused["sessions"] += 1
            return page(429, "sessions")
        answer = _home()
        _set_cookie(answer, request, cookie, int(SESSION_SECONDS))
        return answer

    @app.post("/logout", include_in_schema=False)
    async def sign_out(request: Request) -> Response:
        cookie = cookie_of(request.scope["headers"], is_secure(request.scope))
        if cookie and door.sessions:
            door.sessions.end(cookie)
        answer = Response(status_code=303, headers={"Location": "login" if door.keeper else "./"})
        _set_cookie(answer, request, "", 0)
        return answer

    @app.get("/api/v1/access", responses={200: {"model": WhoAsks}}, summary="Who asks, and what they may see")
    async def who(request: Request) -> Response:
        access, headers = request.scope["access"], request.scope["headers"]
        session = door.keeper is not None and not any(name == b"authorization" for name, _ in headers)
        found = WhoAsks(name=access.name, scopes=list(access.scopes), runs=list(access.runs), session=session)
        return Response(found.model_dump_json(), media_type="application/json")


async def _token(request: Request) -> bytes:
    """The form's token. Raises Denied."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > LOGIN_BYTES_MAX:
            raise Denied("malformed", "a form too large")
    try:
        fields = parse_qs(body.decode("ascii"), max_num_fields=4)
    except ValueError:
        raise Denied("malformed", "no form") from None
    token = fields.get("token", [""])[0].strip()
    if not token:
        raise Denied("missing", "a form without a token")
    return token.encode("utf-8", "replace")


def _home() -> Response:
    return Response(status_code=303, headers={"Location": "./"})


def _set_cookie(answer: Response, request: Request, value: str, seconds: int) -> None:
    secure = is_secure(request.scope)
    answer.set_cookie(
        (SECURE_COOKIE if secure else PLAIN_COOKIE).decode(),
        value,
        max_age=seconds,
        httponly=True,
        samesite="strict",
        secure=secure,
    )
