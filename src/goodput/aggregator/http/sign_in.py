"""The sign-in page: a form takes a read token and sets a session cookie (HttpOnly, SameSite=Strict).

The token itself is stored nowhere: not in the browser, a URL or a log.
"""

from __future__ import annotations

from urllib.parse import parse_qs

from fastapi import FastAPI, Request, Response
from fastapi.responses import RedirectResponse

from goodput import web
from goodput.access.authentication import require_scope
from goodput.access.responses import Refusal
from goodput.access.tokens import Access
from goodput.aggregator.http.authentication import (
    RequestAuthenticator,
    address_of,
    cookie_name,
    cookie_of,
    is_secure,
)
from goodput.aggregator.http.headers import PAGE_POLICY
from goodput.aggregator.http.limits import LOGIN_BYTES_MAX, SESSION_SECONDS
from goodput.aggregator.http.sessions import TooManySessions

_PAGE_HEADERS = {"Content-Security-Policy": PAGE_POLICY}
_PROBLEM = "<!--problem-->"
# The only texts inserted into the form: nothing from a request.
_PROBLEMS = {
    "missing": "Enter a token.",
    "malformed": "This is not a goodput token. One looks like goodput_read_1f2e3d… and has 90 characters.",
    "unknown": "This token is unknown or was revoked.",
    "expired": "This token has expired.",
    "scope": "This token does not read runs. Sign in with a token of scope read.",
    "sessions": "Too many browsers are signed in with this token from other addresses. Sign out in one of them, or ask "
    "for a token of your own.",
    "throttled": "Too many attempts from your address. Wait a minute.",
}


def add_routes(app: FastAPI, authenticator: RequestAuthenticator) -> None:
    tokens, sessions = authenticator.tokens, authenticator.sessions
    form = (web.FOLDER / "login.html").read_text(encoding="utf-8")
    style = (web.FOLDER / "login.css").read_bytes()

    def page(status: int, problem: str = "") -> Response:
        text = form.replace(_PROBLEM, _PROBLEMS.get(problem, ""))
        return Response(text, status, media_type="text/html", headers=_PAGE_HEADERS)

    @app.get("/login", include_in_schema=False)
    async def show() -> Response:
        return page(200) if tokens else RedirectResponse("./", 303)

    @app.get("/login.css", include_in_schema=False)
    async def css() -> Response:
        return Response(style, media_type="text/css", headers={"Cache-Control": "no-cache"})

    @app.post("/login", include_in_schema=False)
    async def sign_in(request: Request) -> Response:
        if tokens is None or sessions is None:
            return RedirectResponse("./", 303)
        try:
            access = tokens.lookup(await _token(request))
            require_scope(access, "read")
            cookie = sessions.begin(access, address_of(request.scope))
        except Refusal as error:
            refusal = authenticator.count_failure(request.scope, error)
            return page(refusal.status, refusal.reason)
        except TooManySessions:
            authenticator.metrics.refused["sessions"] += 1
            authenticator.audit.refusal("sessions", address_of(request.scope), route="login")
            return page(429, "sessions")
        _audit(authenticator, "sign_in", request, access)
        return _with_cookie(RedirectResponse("./", 303), request, cookie, int(SESSION_SECONDS))

    @app.post("/logout", include_in_schema=False)
    async def sign_out(request: Request) -> Response:
        cookie = cookie_of(request.scope)
        if cookie and sessions and (ended := sessions.end(cookie)):
            _audit(authenticator, "sign_out", request, ended)
        return _with_cookie(RedirectResponse("login" if tokens else "./", 303), request, "", 0)


def _audit(authenticator: RequestAuthenticator, event: str, request: Request, access: Access) -> None:
    named = {"token": access.name, "token_id": access.token_id, "address": address_of(request.scope)}
    authenticator.audit.event(event, **named)


async def _token(request: Request) -> bytes:
    """The token entered into the form. Raises Refusal."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > LOGIN_BYTES_MAX:
            raise Refusal("malformed", "the sign-in form is too large")
    try:
        fields = parse_qs(body.decode("ascii"), max_num_fields=4)
    except ValueError:
        raise Refusal("malformed", "malformed sign-in form") from None
    token = fields.get("token", [""])[0].strip()
    if not token:
        raise Refusal("missing", "sign-in form without a token")
    return token.encode("utf-8", "replace")


def _with_cookie(answer: Response, request: Request, value: str, seconds: int) -> Response:
    secure = is_secure(request.scope)
    name = cookie_name(secure)
    answer.set_cookie(name, value, max_age=seconds, httponly=True, samesite="strict", secure=secure)
    return answer
