"""The routes of the built-in page, whose files are in goodput/web."""

from __future__ import annotations

from fastapi import FastAPI, HTTPException, Response
from starlette.responses import FileResponse

from goodput import web
from goodput.aggregator.http.headers import PAGE_POLICY

_HEADERS = {"Cache-Control": "no-cache", "Content-Security-Policy": PAGE_POLICY}


def add_page(app: FastAPI) -> None:
    """To be added last: the routes match any name."""
    media_types = web.assets()

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
