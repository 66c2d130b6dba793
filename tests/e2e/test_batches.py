"""Batches over a real server, and `lmdeploy batch` without one: the same rows, the same responses."""

import json
from pathlib import Path
from typing import Any, Literal

from lmdeploy.cli.main import main
from lmdeploy.paths import DEFAULT_MODEL_NAME
from lmdeploy.serve.tritonserver import TritonServer
from lmdeploy.turbomind.engine_dir import resolve
from openai_gateway.settings import Settings
from tests.support.gateways import openai_client, running_gateway
from tests.support.waiting import eventually_sync

URL: Literal["/v1/chat/completions"] = "/v1/chat/completions"
TOOL = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"town": {"enum": ["Ulm"]}}}},
}
REQUESTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "system": {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who are you?"}]},
    "scored": {"logprobs": True, "top_logprobs": 2},
    "sampled": {"temperature": 1.0, "seed": 7, "n": 2, "top_p": 0.9},
    "stopped": {"stop": ["is"]},
    "formatted": {"response_format": {"type": "json_object"}},
    "called": {"tools": [TOOL], "tool_choice": "required"},
    "too long": {"messages": [{"role": "user", "content": "word " * 20_000}]},
    "wrong": {"logit_bias": {"x": 1}},
}


def rows() -> bytes:
    shared = {"model": DEFAULT_MODEL_NAME, "messages": [{"role": "user", "content": "What is the capital of France?"}]}
    limits = {"max_tokens": 12, "temperature": 0}
    made = (
        {"custom_id": name, "method": "POST", "url": URL, "body": {**shared, **limits, **fields}}
        for name, fields in REQUESTS.items()
    )
    return "".join(json.dumps(row) + "\n" for row in made).encode()


def reported(results: str) -> dict[str, Any]:
    """Return of each result what does not depend on when and where it was made."""
    found = {}
    for line in map(json.loads, results.splitlines()):
        body = line["response"]["body"]
        for choice in body.get("choices", ()):
            for call in choice["message"]["tool_calls"] or ():
                del call["id"]
        body.get("usage", {}).pop("prompt_tokens_details", None)  # requests that run at once find each other's prompts
        kept = {name: body.get(name) for name in ("choices", "usage", "model")}
        if (error := body.get("error")) is not None:
            kept["error"] = error["message"].partition(" However, ")[0]  # a server counts only until it is too much
        found[line["custom_id"]] = {"status": line["response"]["status_code"], **kept}
    return found


def test_a_server_and_the_command_answer_requests_alike(triton_server: TritonServer, tmp_path: Path) -> None:
    address, engine_dir = triton_server.grpc_address, resolve("").path  # where the sampling defaults are
    settings = Settings(triton_address=address, engine_dir=engine_dir, files_dir=tmp_path / "kept")
    with running_gateway(settings) as url, openai_client(url) as client:
        file = client.files.create(file=("in.jsonl", rows()), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint=URL, completion_window="24h")
        eventually_sync(lambda: client.batches.retrieve(batch.id).status == "completed")
        batch = client.batches.retrieve(batch.id)
        served = [client.files.content(name).text for name in (batch.output_file_id, batch.error_file_id) if name]
    given, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    given.write_bytes(rows())
    assert main(["batch", str(given), "-o", str(output), "--dtype", "float32"]) == 1  # some are wrong
    local = [path.read_text() for path in (output, tmp_path / "out.errors.jsonl")]
    assert reported(local[0]) == reported(served[0])
    assert reported(local[0]).keys() == REQUESTS.keys() - {"too long", "wrong"}
    assert reported(local[1]) == reported(served[1])
    assert reported(local[1]).keys() == {"too long", "wrong"}
