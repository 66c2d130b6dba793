"""LoRA adapters through gateway, Triton and engine: loaded, answering as a model of their name, and gone again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx

from lmdeploy import GenerationConfig, TurbomindEngineConfig, pipeline
from lmdeploy.serve.client import GenerateRequest, TritonClient
from openai_gateway.settings import Settings
from tests.support.adapters import OWN_TEMPLATE, make_adapter
from tests.support.event_stream import Index
from tests.support.gateways import running_gateway
from tests.support.metrics import engine_metrics, metrics_of
from tests.support.prefix_hits import found
from tests.support.servers import running_triton
from tests.support.tiny_models import make_tiny_llama
from tests.support.waiting import eventually_sync

PROMPT = "Once upon a time, in a land far away, there lived a king who asked for nothing but stories."
BLOCK = 16
PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos"
MESSAGES = [{"role": "user", "content": PROMPT}]
ADMIN = {"Authorization": "Bearer boss"}


def offline(directory: Path, adapters: dict[str, str]) -> dict[str, str]:
    """Return the responses of each model in this process."""
    config = TurbomindEngineConfig(dtype="float32", adapters=adapters, cache_max_entry_count=64)
    greedy = GenerationConfig(max_new_tokens=8, ignore_eos=True)
    with pipeline(str(directory), config) as pipe:
        return {
            name or directory.name: pipe(PROMPT, greedy, do_preprocess=False, adapter_name=name).text
            for name in (None, *adapters)
        }


async def over_grpc(address: str, name: str) -> str:
    """Return the response of an adapter that Triton is asked for by itself."""
    async with TritonClient(address) as client:
        request = GenerateRequest(text_input=PROMPT, lora_name=name, max_new_tokens=8, ignore_eos=True, stream=False)
        return "".join([chunk.text async for chunk in client.generate(request)])


def test_adapters_come_answer_and_go_while_a_server_runs(tmp_path: Path) -> None:
    directory = make_tiny_llama(tmp_path / "base")
    paths = {name: str(make_adapter(tmp_path / name, directory, seed=ord(name))) for name in "ab"}
    expected = offline(directory, paths)
    assert len(set(expected.values())) == 3
    events = {
        "enable_kv_cache_events": True,
        "endpoint": f"ipc://{tmp_path}/events",
        "replay_endpoint": f"ipc://{tmp_path}/replay",
        "topic": "kv@pod@base",
    }
    with (
        running_triton(
            directory,
            adapters={"a": paths["a"]},
            cache_max_entry_count=64,
            cache_block_seq_len=BLOCK,
            enable_prefix_caching=True,
            kv_events_config=events,
            speculative_config={"model": str(directory), "adaptive": False, "num_speculative_tokens": 3},
        ) as triton,
        running_gateway(
            Settings(
                triton_address=triton.grpc_address,
                model_name=directory.name,
                admin_keys=("boss",),
                control_key=triton.control_key,
            )
        ) as url,
        httpx.Client(base_url=url) as http,
    ):

        def respond(model: str, prompt: str = PROMPT) -> httpx.Response:
            body = {"model": model, "prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
            return http.post("/v1/completions", json=body)

        def models() -> list[str]:
            return [card["id"] for card in http.get("/v1/models").json()["data"]]

        assert models() == ["base", "a"]
        for name in ("base", "a"):
            assert respond(name).json()["choices"][0]["text"] == expected[name]
        assert respond("b").status_code == 404

        loaded = http.post("/v1/load_lora_adapter", json={"lora_name": "b", "lora_path": paths["b"]}, headers=ADMIN)
        assert loaded.status_code == 200, loaded.text
        assert models() == ["base", "a", "b"]
        assert respond("b").json()["choices"][0]["text"] == expected["b"]

        wrong = {"lora_name": "c", "lora_path": str(directory)}
        rejected = http.post("/v1/load_lora_adapter", json=wrong, headers=ADMIN)
        assert rejected.status_code in (400, 404)
        assert "adapter c: " in rejected.json()["error"]["message"]

        assert http.post("/v1/unload_lora_adapter", json={"lora_name": "a"}, headers=ADMIN).status_code == 200
        assert models() == ["base", "b"]
        assert respond("a").status_code == 404
        assert respond("base").json()["choices"][0]["text"] == expected["base"]

        assert asyncio.run(over_grpc(triton.grpc_address, "b")) == expected["b"]

        # A router asks for a prompt's tokens, and knows from events alone for which models they are cached.
        body = {"model": "base", "prompt": PROMPT}
        (rendered,) = http.post("/v1/completions/render", json=body).json()
        tokens = rendered["token_ids"]
        whole_blocks = (len(tokens) - 1) // BLOCK * BLOCK
        assert whole_blocks > 0
        with Index(events["endpoint"], events["replay_endpoint"]) as index:

            def knows() -> bool:
                index.follow(engine_metrics(triton)["kv_event_batches_total"])
                return all(index.found(tokens, BLOCK, name) == whole_blocks for name in (None, "a", "b"))

            eventually_sync(knows)
            assert index.found(tokens, BLOCK, "c") == 0
        cached = found(len(tokens) - 1, BLOCK)
        assert respond("base").json()["usage"]["prompt_tokens_details"] == {"cached_tokens": cached}

        # The model, found by its path, drafted for itself.
        drafting = metrics_of(httpx.get(triton.metrics_url).text)
        accepted = drafting.one("vllm:spec_decode_num_accepted_tokens_total")
        counts = [drafting.one(f"{PER_POSITION}_total", position=str(position)) for position in range(3)]
        assert sum(counts) == accepted == drafting.one("turbomind_draft_tokens_accepted_total")
        assert counts[0] >= counts[1] >= counts[2] > 0
        assert drafting.one("vllm:spec_decode_num_draft_tokens_total") >= accepted

        # One with its own chat template: messages for it are written so, and those for others as before.
        (Path(paths["a"]) / "chat_template.jinja").write_text(OWN_TEMPLATE)

        def reported(model: str) -> str:
            body = {"model": model, "messages": MESSAGES, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
            text: str = http.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"]
            return text

        templated = f"USER: {PROMPT}\nREPLY:"
        before = reported("b")
        loaded = http.post("/v1/load_lora_adapter", json={"lora_name": "own", "lora_path": paths["a"]}, headers=ADMIN)
        assert loaded.status_code == 200, loaded.text
        assert reported("own") == respond("own", templated).json()["choices"][0]["text"]
        assert reported("b") == before
