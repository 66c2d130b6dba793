"""Sandboxed rendering of adapters' chat templates: ``python -m lmdeploy.templates.rendering``."""

import json
from typing import Any

from lmdeploy.limited_process import Message, handle_requests
from lmdeploy.templates.jinja import TEMPLATE_ERRORS, render, require_compiled


def _handled(header: dict[str, Any], content: bytes) -> Message:
    request = json.loads(content)
    require_compiled(request["template"])
    if request["variables"] is None:
        return {}, b""
    try:
        return {}, render(request["template"], request["variables"]).encode(errors="surrogatepass")
    except MemoryError:
        raise
    except TEMPLATE_ERRORS as error:
        raise ValueError(str(error)) from error


if __name__ == "__main__":
    handle_requests("rendering the chat template", _handled)
