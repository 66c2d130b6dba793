"""Prompts of four times the trained length: scaled positions are those of `transformers`.

Where frequencies depend on the length of a sequence, the engine takes its prompt's. So the reference reads the prompt
in one pass, and then keeps the frequencies it chose for the prompt.
"""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.support import published
from tests.support.tiny_models import make_tiny
from tests.support.token_engine import TokenEngine, relative_error

TRAINED = 64
TOLERANCE = 1e-4
PROMPT = [(37 * i * i + 11 * i) % 1900 + 100 for i in range(4 * TRAINED)]
PAIR_FACTORS = [1.0, 1.5, 2.0, 4.0]
SCALINGS: dict[str, dict[str, Any]] = {
    "dynamic": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0},
    "yarn": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": TRAINED},
    "longrope": {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": PAIR_FACTORS,
        "long_factor": [3 * factor for factor in PAIR_FACTORS],
        "original_max_position_embeddings": TRAINED,
    },
}


def load(directory: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()


def forward(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(torch.tensor([ids])).logits[0]
    return logits


def freeze_frequencies(model: Any) -> None:
    """Keep the frequencies of the last forward, whatever comes."""
    model.model.rotary_emb.rope_type = "default"


def add_logn(model: Any, trained: int) -> None:
    """Multiply queries by the logarithm of their position beyond the trained length."""

    def scale(module: Any, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(1, output.shape[1] + 1)
        return output * torch.clamp(positions.log() / math.log(trained), min=1.0)[None, :, None]

    for layer in model.model.layers:
        layer.self_attn.q_proj.register_forward_hook(scale)


def agrees(engine: TokenEngine, model: Any, prompt: list[int]) -> None:
    """Compare the prompt's logits, then those of the response with the prompt's frequencies."""
    response, logits = engine.generate(prompt, 8, "all")
    assert relative_error(logits[: len(prompt)], forward(model, prompt)) < TOLERANCE
    kind = model.model.rotary_emb.rope_type
    freeze_frequencies(model)
    assert relative_error(logits, forward(model, prompt + response[:-1])) < TOLERANCE
    model.model.rotary_emb.rope_type = kind


@pytest.mark.parametrize("kind", SCALINGS)
def test_a_prompt_beyond_the_trained_length_is_stretched_as_transformers_does(kind: str, tmp_path: Path) -> None:
    architecture = "Phi3ForCausalLM" if kind == "longrope" else "LlamaForCausalLM"
    length = 4 * TRAINED if kind == "longrope" else TRAINED
    overrides = {"max_position_embeddings": length, "rope_parameters": SCALINGS[kind], "pad_token_id": 0}
    if kind == "longrope":
        overrides["sliding_window"] = None
    directory = make_tiny(tmp_path / "model", architecture, **overrides)
    model = load(directory)
    with TokenEngine(directory) as engine:
        agrees(engine, model, PROMPT[: TRAINED - 10])
        agrees(engine, model, PROMPT)


def test_prompts_stretched_differently_share_no_blocks(tmp_path: Path) -> None:
    overrides = {"max_position_embeddings": TRAINED, "rope_parameters": SCALINGS["dynamic"]}
    directory = make_tiny(tmp_path / "model", "LlamaForCausalLM", **overrides)
    model = load(directory)
    with TokenEngine(directory) as engine:
        for length, matched in ((200, 0), (210, 0), (TRAINED - 1, 0), (210, 208), (TRAINED - 2, TRAINED - 3)):
            before = engine.matched_tokens()
            _, logits = engine.generate(PROMPT[:length], 1, "generation")
            assert engine.matched_tokens() - before == matched
            assert relative_error(logits, forward(model, PROMPT[:length])[-1:]) < TOLERANCE


def test_rope_scaling_factor_is_dynamic_scaling(tmp_path: Path) -> None:
    unscaled = make_tiny(tmp_path / "plain", "LlamaForCausalLM", max_position_embeddings=TRAINED)
    scaled = make_tiny(
        tmp_path / "scaled", "LlamaForCausalLM", max_position_embeddings=TRAINED, rope_parameters=SCALINGS["dynamic"]
    )
    with TokenEngine(unscaled, rope_scaling_factor=2.0) as engine:
        agrees(engine, load(scaled), PROMPT)


def test_a_scaling_of_the_checkpoint_and_rope_scaling_factor_exclude_each_other(tmp_path: Path) -> None:
    directory = make_tiny(tmp_path / "model", "LlamaForCausalLM", rope_parameters=SCALINGS["yarn"])
    with pytest.raises(ValueError, match="rope_scaling_factor: this model's checkpoint has its own scaling"):
        TokenEngine(directory, rope_scaling_factor=2.0)
    with pytest.raises(ValueError, match=r"rope_scaling_factor must be 0 or >= 1, got 0\.5"):
        TokenEngine(directory, rope_scaling_factor=0.5)


def test_use_logn_attn_scales_queries_beyond_the_trained_length(tmp_path: Path) -> None:
    directory = make_tiny(tmp_path / "model", "LlamaForCausalLM", max_position_embeddings=TRAINED)
    model = load(directory)
    add_logn(model, TRAINED)
    with TokenEngine(directory, use_logn_attn=True) as engine:
        agrees(engine, model, PROMPT)


@pytest.mark.parametrize("length", [TRAINED, TRAINED + 1, 2 * TRAINED, 2 * TRAINED + 1, 4 * TRAINED])
def test_qwen_stretches_in_powers_of_two_and_scales_queries(length: int, tmp_path: Path) -> None:
    overrides = {"num_key_value_heads": 4, "tie_word_embeddings": False}
    directory = make_tiny(tmp_path / "model", "Qwen2ForCausalLM", **overrides)
    model = load(directory)
    published.qwen(directory, TRAINED)
    add_logn(model, TRAINED)
    # Qwen's own code: alpha = 2^ceil(log2(length / trained) + 1) - 1, at least 1; theta grows by alpha^(d / (d - 2)).
    alpha = max(2 ** math.ceil(math.log2(length / TRAINED) + 1) - 1, 1)
    head_dim = 8
    theta = 10000.0 * alpha ** (head_dim / (head_dim - 2))
    model.model.rotary_emb.inv_freq = 1.0 / theta ** (torch.arange(0, head_dim, 2).float() / head_dim)
    with TokenEngine(directory) as engine:
        agrees(engine, model, PROMPT[:length])
