"""The real thing for end-to-end tests: tritonserver with a real model, and a gateway in front of it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from lmdeploy.paths import DEFAULT_MODEL_NAME, default_model_dir
from lmdeploy.serve.ports import Ports
from lmdeploy.serve.tritonserver import TritonServer
from lmdeploy.turbomind.engine_dir import resolve
from lmdeploy.turbomind.repository import template_dir

START = 180.0  # seconds a server gets to be ready on a busy machine


def answers(url: str) -> bool:
    """Return whether a GET is answered with 200."""
    try:
        return httpx.get(url, trust_env=False, follow_redirects=True, timeout=30).status_code == 200
    except httpx.TransportError:
        return False


def generated(server: TritonServer, messages: Any, model: str = "ensemble", **fields: Any) -> dict[str, Any]:
    """Return the response of a server's ``generate`` endpoint to messages."""
    url = f"http://{server.http_address}/v2/models/{model}/generate"
    response = httpx.post(url, json={"messages": json.dumps(messages), **fields}, trust_env=False)
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


@contextmanager
def running_triton(
    model_path: Path | None = None, *, chat_template: str = "", **engine_config: Any
) -> Iterator[TritonServer]:
    """Serve a model (default: the default model, float32) with our backend on free ports."""
    path = model_path or default_model_dir()
    assert path.is_dir(), f"{path} is missing; run: make model"
    with contextlib.suppress(ValueError):  # which the server is to report
        resolve(path)  # here, where transformers is loaded: each of the server's processes would load it too
    server = TritonServer(
        template_dir(),
        model_path=str(path),
        model_name=DEFAULT_MODEL_NAME if model_path is None else model_path.name,
        chat_template=chat_template,
        engine_config={"dtype": "float32", **engine_config},
        ports=Ports.free(),
    )
    with server:
        server.wait_ready(START)
        yield server
        assert server.wait(0) in (None, 0), server.failure("tritonserver crashed during the tests")
        server.stop(grace=0)  # it would take seconds; who needs its last words asks for them before
