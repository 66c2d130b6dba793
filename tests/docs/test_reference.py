"""The reference names every command, option, endpoint and request field that there is.

Pages are compared with what users see: `--help`, and the server's OpenAPI document.
"""

import contextlib
import io
import re
from typing import Any

import pytest

from lmdeploy.cli.main import make_parser
from openai_gateway.app import create_app
from openai_gateway.settings import Settings
from tests.docs.blocks import ROOT

REFERENCE = ROOT / "docs" / "reference"
HTTP_API = REFERENCE / "http-api"
OPENAPI: dict[str, Any] = create_app(Settings()).openapi()
PAGES = {
    "/v1/chat/completions": "chat-completions",
    "/v1/completions": "completions",
    "/v1/responses": "responses",
    "/v1/messages": "messages",
    "/api/": "ollama",
    **dict.fromkeys(("/api/v0/", "/api/v1/", "/props", "/slots"), "models"),
    "/v1/embeddings": "embeddings",
    "/embed": "embeddings",
    "/predict": "reranking",
    **dict.fromkeys(("/v1/rerank", "/v1/score", "/v1/classify", "/v1/pooling"), "reranking"),
    **dict.fromkeys(("/v1/files", "/v1/batches"), "files-and-batches"),
    "/v1/chat/interactive": "interactive",
    **dict.fromkeys(("/v1/encode", "/tokenize", "/detokenize"), "tokens"),
    **dict.fromkeys(("/v1/chat/completions/render", "/v1/completions/render"), "tokens"),
    **dict.fromkeys(("/v1/models", "/v1/load_", "/v1/unload_", "/v1/cache", "/health", "/metrics"), "models"),
    **dict.fromkeys(("/sleep", "/wake_up", "/is_sleeping"), "models"),
}
COMMON = (HTTP_API / "common-fields.md").read_text(encoding="utf-8")
COMMANDS = (
    *("serve api_server", "serve gateway", "serve gradio", "serve proxy", "serve ray", "serve api_client"),
    *("serve triton_client", "chat", "batch", "convert", "lite auto_awq", "lite auto_gptq", "lite smooth_quant"),
    *("lite calibrate", "lite kv_qparams", "plan", "pull", "rm", "ps", "stop", "list", "new-family", "check_env"),
    "warm",
)


def page_of(path: str) -> str:
    """Return the text of the page that describes an endpoint: the one with the longest prefix of its path."""
    page = PAGES[max((prefix for prefix in PAGES if path.startswith(prefix)), key=len)]
    return (HTTP_API / f"{page}.md").read_text(encoding="utf-8")


def fields_of(operation: dict[str, Any]) -> set[str]:
    """Return the names of a request's body and query."""
    names = {parameter["name"] for parameter in operation.get("parameters", []) if parameter["in"] == "query"}
    for content in operation.get("requestBody", {}).get("content", {}).values():
        schema = content["schema"]
        if "$ref" in schema:
            schema = OPENAPI["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        names |= set(schema["properties"])
    return names


def help_of(command: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as shown, pytest.raises(SystemExit):
        make_parser().parse_everything([*command.split(), "--help"])
    return shown.getvalue()


@pytest.mark.parametrize("path", OPENAPI["paths"])
def test_an_endpoint_has_a_page_with_its_fields(path: str) -> None:
    page = page_of(path)
    generic = re.sub(r"\{\w+\}", "{id}", path)
    assert f"{generic}`" in page
    assert (
        f"{generic}`" in (HTTP_API / "index.md").read_text(encoding="utf-8")
        or "/v1/files/" in path
        or "/v1/batches/" in path
    )
    if path.endswith("/render"):
        return  # the bodies of other endpoints
    described = page if "common-fields.md" not in page else page + COMMON
    fields = set().union(*(fields_of(operation) for operation in OPENAPI["paths"][path].values()))
    assert [name for name in sorted(fields) if not re.search(rf"`{re.escape(name)}[`:.]", described)] == []


def test_commands_are_those_of_the_help() -> None:
    assert set(re.findall(r"^    ([\w-]+)  ", help_of(""), re.MULTILINE)) == {name.split()[0] for name in COMMANDS}
