"""What people read of the API: OpenAPI, a page made from it without outside assets, and every error's explanation."""

import re
from base64 import b64encode
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Any, Final

import fastapi_offline
from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.openapi.utils import get_openapi
from starlette.responses import HTMLResponse
from starlette.staticfiles import StaticFiles

from rota.api.job_schema import DEFINITION, SCHEDULE
from rota.api.problems import ERRORS_PAGE, PROBLEM_SCHEMA, STATUS, every_error, explanation_of
from rota.errors import RotaError
from rota.version import VERSION

ASSETS: Final = "/docs/assets"
DESCRIPTION: Final = (
    "Rota over HTTP: jobs, runs, and workers in any language. Refusals are problem documents (RFC 9457) with a stable"
    f" `code`; [{ERRORS_PAGE}]({ERRORS_PAGE}) explains each. Job ids stand percent-encoded in paths."
)


class DescribedAPI(FastAPI):
    """An application that describes itself in Rota's words."""

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document; made once."""
        if self.openapi_schema is None:
            schema = get_openapi(
                title="Rota", version=VERSION, description=DESCRIPTION, routes=self.routes, openapi_version="3.1.0"
            )
            components = schema.setdefault("components", {})
            schemas = components.setdefault("schemas", {})
            schemas["Problem"] = PROBLEM_SCHEMA
            # The wire leaves these to the domain; people and tools want to know more.
            schemas["PreviewQuestion"]["properties"]["schedule"] = SCHEDULE
            schemas["JobsBatch"]["properties"]["jobs"]["items"] = {**DEFINITION, "required": ["job_id", "handler"]}
            components["securitySchemes"] = {
                "token": {"type": "http", "scheme": "bearer", "description": "rota_..., from `rota token create`."}
            }
            self.openapi_schema = schema
        return self.openapi_schema


def register(app: FastAPI) -> None:
    """Add the pages."""

    async def docs_page() -> HTMLResponse:
        page = get_swagger_ui_html(
            openapi_url="/openapi.json",
            title="Rota's API",
            swagger_js_url=f"{ASSETS}/swagger-ui-bundle.js",
            swagger_css_url=f"{ASSETS}/swagger-ui.css",
            swagger_favicon_url=f"{ASSETS}/favicon.png",
        )
        return _guarded(bytes(page.body).decode())

    async def errors_page() -> HTMLResponse:
        return _guarded(_errors_page())

    static = Path(fastapi_offline.__file__).parent / "static"
    app.mount(ASSETS, StaticFiles(directory=static), name="assets")
    app.add_api_route("/docs", docs_page, include_in_schema=False)
    app.add_api_route(ERRORS_PAGE, errors_page, include_in_schema=False)


def _guarded(page: str) -> HTMLResponse:
    """Return a page that loads what is ours and runs what stands in it, and nothing else."""
    scripts = " ".join(f"'{_digest(script)}'" for script in re.findall(r"<script>(.*?)</script>", page, re.DOTALL))
    policy = (
        f"default-src 'none'; script-src 'self' {scripts}; style-src 'self' 'unsafe-inline'; img-src 'self' data:;"
        " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return HTMLResponse(page, headers={"Content-Security-Policy": policy})


def _digest(script: str) -> str:
    return f"sha256-{b64encode(sha256(script.encode()).digest()).decode()}"


def _errors_page() -> str:
    entries = []
    seen = set[str]()
    for kind in every_error():
        if kind.code in seen:
            continue
        seen.add(kind.code)
        entries.append(
            f'<h2 id="{escape(kind.code)}"><code>{escape(kind.code)}</code></h2>'
            f"<p>HTTP status {_status(kind)}. {escape(explanation_of(kind))}</p>"
        )
    style = "body{max-width:44rem;margin:2rem auto;padding:0 1rem;font:1rem/1.5 system-ui}:target{background:#ffef9e}"
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>Errors of Rota</title>'
        f"<style>{style}</style></head><body><h1>Errors</h1>{''.join(entries)}</body></html>"
    )


def _status(kind: type[RotaError]) -> int:
    return next(STATUS[base] for base in kind.__mro__ if base in STATUS)
