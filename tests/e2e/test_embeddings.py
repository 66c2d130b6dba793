"""A model that is made for embeddings, through gateway, Triton and engine."""

from pathlib import Path

import numpy as np
import openai
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3ForCausalLM

from lmdeploy.tokenizer import Tokenizer
from lmdeploy.turbomind.engine_dir import resolve
from openai_gateway.settings import Settings
from tests.gateway.test_embeddings import write_modules
from tests.support.gateways import running_gateway
from tests.support.servers import running_triton
from tests.support.tiny_models import make_tiny

TEXTS = [
    "What is the capital of China?",
    "The capital of China is Beijing, and it has been so for most of the last seven hundred years.",
    "Gravity",
]


def make_body(directory: Path) -> Path:
    """Make a checkpoint as Qwen3-Embedding is published: without an output layer, and no ``model.`` before names."""
    make_tiny(directory, "Qwen3ForCausalLM", head_dim=8, tie_word_embeddings=False)
    file = directory / "model.safetensors"
    tensors = {name.removeprefix("model."): data for name, data in load_file(file).items() if name != "lm_head.weight"}
    save_file(tensors, file, {"format": "pt"})
    config = (directory / "config.json").read_text()
    write_modules(directory)
    (directory / "config.json").write_text(config)
    return directory


def test_vectors_are_those_of_transformers(tmp_path: Path) -> None:
    whole = make_tiny(tmp_path / "whole", "Qwen3ForCausalLM", head_dim=8, tie_word_embeddings=False)
    body = make_body(tmp_path / "body")
    model, tokenizer = Qwen3ForCausalLM.from_pretrained(whole, dtype=torch.float32).model, Tokenizer(str(whole))
    with torch.no_grad():
        states = [model(torch.tensor([tokenizer.encode(text)])).last_hidden_state[0, -1] for text in TEXTS]
    expected = np.stack([(state / state.norm()).numpy() for state in states])
    with (
        running_triton(body, dtype="float32", cache_max_entry_count=64, enable_prefix_caching=True) as triton,
        running_gateway(
            Settings(triton_address=triton.grpc_address, model_name="body", engine_dir=resolve(body).path)
        ) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        responses = [client.embeddings.create(model="body", input=TEXTS) for _ in range(2)]
        vectors = [[entry.embedding for entry in response.data] for response in responses]
        np.testing.assert_allclose(vectors[0], expected, atol=1e-4)
        assert vectors[0] == vectors[1]  # of the second most is found in the cache
        tokens = [tokenizer.encode(text) for text in TEXTS]
        assert responses[0].usage.prompt_tokens == sum(map(len, tokens))
        of_tokens = client.embeddings.create(model="body", input=tokens)
        assert [entry.embedding for entry in of_tokens.data] == vectors[0]
