"""The routes of the built-in page, whose files are in goodput/web."""

from __future__ import annotations

from fastapi import FastAPI, HTTPException, Response
from msgspec import Struct
from starlette.responses import FileResponse

from goodput import web
from goodput.aggregator.api.responses import json_of, json_response
from goodput.aggregator.http.headers import PAGE_POLICY

_HEADERS = {"Cache-Control": "no-cache", "Content-Security-Policy": PAGE_POLICY}


class PageSettings(Struct):
    """Settings of the built-in page. `grafana` is the URL of the Grafana that has the boards, without a slash at its end."""

    grafana: str | None


DOCUMENTS = (PageSettings,)


def add_page(app: FastAPI, grafana: str | None = None) -> None:
    """To be added last: the routes match any name."""
    media_types = web.assets()

    @app.get("/api/v1/page", responses=json_of(PageSettings), summary="Settings of the built-in page")
    async def settings() -> Response:
        return json_response(PageSettings(grafana))

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return FileResponse(web.FOLDER / "page.html", media_type="text/html", headers=_HEADERS)

    @app.get("/scripts/{name:path}", include_in_schema=False)
    async def script(name: str) -> Response:
        return await asset(f"scripts/{name}")

    @app.get("/{name}", include_in_schema=False)
    async def asset(name: str) -> Response:
        if name not in media_types:
            raise HTTPException(404, "not found")
        return FileResponse(web.FOLDER / name, media_type=media_types[name], headers=_HEADERS)
