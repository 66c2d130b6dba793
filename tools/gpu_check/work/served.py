"""A request of OpenAI's protocol through the gateway to an engine on the device.

Triton is not on every GPU machine: the tests' stand-in for it takes its place, and has the engine of this process make
the responses.
"""

from __future__ import annotations

import importlib
import json
import time
import urllib.request
from typing import Any

from lmdeploy.messages import GenerationConfig, TurbomindEngineConfig
from tools.gpu_check.work.context import Context, LeftOut

_OUTPUT = 64
_NAME = "gpu-check"


def main(context: Context) -> None:
    """Ask for a chat completion, streamed and whole.

    Raises
    ------
    RuntimeError
        The responses are not the engine's.
    """
    context.native()
    try:
        fake_triton = importlib.import_module("tests.support.fake_triton")
        gateways = importlib.import_module("tests.support.gateways")
        settings = importlib.import_module("openai_gateway.settings")
    except ImportError as error:
        raise LeftOut(f"the gateway's packages are not all here: {error}") from error
    from lmdeploy import pipeline

    config = TurbomindEngineConfig(
        device="cuda", dtype="bfloat16", max_batch_size=4, session_len=256, cache_max_entry_count=64
    )
    greedy = GenerationConfig(max_new_tokens=8 if context.is_dry_run else _OUTPUT, ignore_eos=True)
    with pipeline(str(context.model("llama-8b", 2)), backend_config=config) as pipe:
        said: list[str] = []

        def respond(received: Any) -> Any:
            pieces = [output.text for output in pipe.stream_infer("a question", gen_config=greedy)]
            said.append("".join(pieces))
            return fake_triton.Script(texts=pieces)

        triton = fake_triton.FakeTriton(_NAME)
        triton.script = respond
        try:
            with gateways.running_gateway(settings.Settings(triton_address=triton.address, model_name=_NAME)) as url:
                begin = time.perf_counter()
                whole = _ask(url, stream=False)
                seconds = time.perf_counter() - begin
                streamed = _ask(url, stream=True)
        finally:
            triton.stop()
    if [whole, streamed] != said:
        raise RuntimeError(f"the engine said {said}, the gateway {[whole, streamed]}")
    context.note("served: tokens/s", (greedy.max_new_tokens or 0) / seconds)


def _ask(url: str, *, stream: bool) -> str:
    """Return the text of a chat completion."""
    body = {"model": _NAME, "messages": [{"role": "user", "content": "a question"}], "stream": stream}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        text = response.read().decode()
    if not stream:
        return str(json.loads(text)["choices"][0]["message"]["content"])
    events = [line[6:] for line in text.splitlines() if line.startswith("data: {")]
    return "".join(event["choices"][0]["delta"].get("content") or "" for event in map(json.loads, events))
