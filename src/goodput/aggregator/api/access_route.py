"""GET /api/v1/access: what the client's token allows."""

from __future__ import annotations

from fastapi import FastAPI, Request, Response
from msgspec import Struct

from goodput.aggregator.api.responses import access_of, json_of, json_response
from goodput.aggregator.http.authentication import RequestAuthenticator
from goodput.aggregator.http.headers import header_values


class AccessDocument(Struct):
    """The client's token: its name, scopes and runs; `session` is true for a browser that signed in."""

    name: str
    scopes: list[str]
    runs: list[str]
    session: bool


DOCUMENTS = (AccessDocument,)


def add_access_route(app: FastAPI, authenticator: RequestAuthenticator) -> None:
    @app.get("/api/v1/access", responses=json_of(AccessDocument), summary="The client's token and runs")
    async def access(request: Request) -> Response:
        access = access_of(request)
        session = authenticator.tokens is not None and not header_values(
            request.scope["headers"], b"authorization"
        )
        return json_response(AccessDocument(access.name, list(access.scopes), list(access.runs), session))
