"""API documentation page: Swagger UI, every file of which comes from this server."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import fastapi_offline
from fastapi import FastAPI, Request
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.responses import FileResponse, HTMLResponse

PAGE, DESCRIPTION = "/", "/openapi.json"
_SCRIPT, _STYLE, _ICON = "/docs/swagger-ui-bundle.js", "/docs/swagger-ui.css", "/docs/favicon.png"
PATHS = (PAGE, DESCRIPTION, _SCRIPT, _STYLE, _ICON)
_KINDS = {".js": "text/javascript", ".css": "text/css", ".png": "image/png"}  # machines guess differently
_FOLDER = Path(str(files(fastapi_offline))) / "static"


def add_docs_page(app: FastAPI) -> None:
    """Serve the page of an application; it asks no other host, and works below another path too."""

    @app.get(PAGE, include_in_schema=False)
    async def page() -> HTMLResponse:
        return get_swagger_ui_html(
            openapi_url=DESCRIPTION[1:],
            title=app.title,
            swagger_js_url=_SCRIPT[1:],
            swagger_css_url=_STYLE[1:],
            swagger_favicon_url=_ICON[1:],
            swagger_ui_parameters={"validatorUrl": None},
        )

    async def file(request: Request) -> FileResponse:
        name = request.scope["route"].path.rpartition("/")[2]
        return FileResponse(_FOLDER / name, media_type=_KINDS[Path(name).suffix])

    for path in (_SCRIPT, _STYLE, _ICON):
        app.add_api_route(path, file, include_in_schema=False)
