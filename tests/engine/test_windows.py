"""Models whose layers all have sliding windows hold a bounded number of cache blocks, however long a text gets."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.support.both_engines import BACKENDS
from tests.support.tiny_models import make_tiny
from tests.support.token_engine import TokenEngine, relative_error

WINDOW = 40
BLOCKS = 12  # of 16 tokens: window, one step of 20 rows, and what is cut at both ends take 6


def prompt_of(length: int) -> list[int]:
    return [(37 * i * i + 11 * i) % 1900 + 100 for i in range(length)]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("tiny") / "model"
    return make_tiny(target, "MistralForCausalLM", sliding_window=WINDOW, max_position_embeddings=131072)


@pytest.mark.parametrize("backend", BACKENDS)
def test_responses_beyond_the_cache_are_those_of_transformers(directory: Path, backend: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
    prompt = prompt_of(60 * WINDOW // 2)
    assert len(prompt) > BLOCKS * 16
    settings = {"session_len": 4096, "cache_max_entry_count": BLOCKS}
    with TokenEngine(directory, backend=backend, **settings) as engine, torch.no_grad():
        response, logits = engine.generate(prompt, 50, "generation")
        expected = model(torch.tensor([prompt + response[:-1]])).logits[0, len(prompt) - 1 :]
        assert relative_error(logits, expected) < 1e-4


def test_100k_tokens_fit_into_a_dozen_blocks(directory: Path) -> None:
    settings = {"session_len": 101_000, "cache_max_entry_count": 40, "num_tokens_per_iter": 480}
    with TokenEngine(directory, **settings) as engine:
        _, logits = engine.generate(prompt_of(100_000), 20, "generation")
        assert logits.isfinite().all()
        assert engine.engine.metrics()["preemptions_total"] == 0


# The layers of Gemma 3 270M and of GPT-OSS 20B; how many times the tokens fit that one group for all layers would hold.
@pytest.mark.parametrize(
    ("window", "layers", "tokens", "min_ratio"),
    [(512, (["sliding_attention"] * 5 + ["full_attention"]) * 3, 8192, 4.0),
     (128, ["sliding_attention", "full_attention"] * 12, 32768, 1.9)],
    ids=["gemma-3-270m", "gpt-oss-20b"],
)  # fmt: skip
def test_a_cache_holds_as_many_tokens_of_published_layers_as_promised(
    window: int, layers: list[str], tokens: int, min_ratio: float, tmp_path: Path
) -> None:
    sizes = {"num_hidden_layers": len(layers), "layer_types": layers, "sliding_window": window, "head_dim": 16}
    directory = make_tiny(tmp_path / "model", "Gemma3ForCausalLM", max_position_embeddings=32768, **sizes)
    settings = {"cache_max_entry_count": int(tokens / 64 / min_ratio), "cache_block_seq_len": 64, "max_batch_size": 1}
    with TokenEngine(directory, session_len=tokens, num_tokens_per_iter=128, **settings) as engine:
        assert engine.engine.session_len == tokens


# Of 12 blocks of two layers, this engine gives each layer the pages that it needs: 5 that a window of 40 and a step of
# 20 rows may begin and end in, the other 19 to the layer that sees everything.
@pytest.mark.parametrize(("backend", "tokens"), [("turbomind", 19 * 16), ("pytorch", BLOCKS * 16)])
def test_a_layer_with_a_window_leaves_its_memory_to_one_that_sees_everything(
    tmp_path: Path, backend: str, tokens: int
) -> None:
    directory = make_tiny(
        tmp_path / "model", "Gemma2ForCausalLM", head_dim=16, sliding_window=WINDOW, max_position_embeddings=4096
    )
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
    with TokenEngine(directory, backend=backend, session_len=4096, cache_max_entry_count=BLOCKS) as engine:
        assert engine.engine.session_len == tokens
        prompt = prompt_of(tokens - 30)
        response, logits = engine.generate(prompt, 20, "generation")
        with torch.no_grad():
            expected = model(torch.tensor([prompt + response[:-1]])).logits[0, len(prompt) - 1 :]
        assert relative_error(logits, expected) < 1e-4
        assert engine.engine.metrics()["preemptions_total"] == 0
