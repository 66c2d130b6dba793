"""Models of `transformers` on the paged attention: the logits are theirs, in chunks, alongside others, in any cache."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from lmdeploy.errors import UnsupportedModelError
from lmdeploy.pytorch.native_layers import NativeLinear
from lmdeploy.pytorch.replacing import recurrent_layers
from lmdeploy.pytorch.served_by_transformers import reject_unsupported
from tests.support.worker_steps import Part, StepDriver

VOCAB, HIDDEN = 512, 64
SIZES = {
    "vocab_size": VOCAB, "hidden_size": HIDDEN, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 96, "max_position_embeddings": 256, "n_embd": HIDDEN, "n_layer": 2,
    "n_head": 4, "n_positions": 256, "ffn_dim": 96, "word_embed_proj_dim": HIDDEN, "num_experts": 4,
    "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
LATENT = {
    "num_key_value_heads": 4, "kv_lora_rank": 16, "q_lora_rank": 32, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16,
    "v_head_dim": 16, "n_group": 1, "topk_group": 1, "n_shared_experts": 1, "first_k_dense_replace": 1,
}  # fmt: skip
DBRX = {
    "d_model": HIDDEN, "n_heads": 4, "n_layers": 2, "max_seq_len": 256,
    "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 1e4},
    "ffn_config": {"ffn_hidden_size": 96, "moe_num_experts": 4, "moe_top_k": 2},
}  # fmt: skip
SOFT_CAPS = {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 6.0}
# Class of transformers, and what a tiny one needs besides; first those that the TurboMind engine has as well.
MODELS: list[tuple[str, dict[str, Any]]] = [
    ("LlamaForCausalLM", {}),
    ("Qwen2ForCausalLM", {}),
    ("Qwen3MoeForCausalLM", {"head_dim": 16}),
    ("Gemma2ForCausalLM", SOFT_CAPS | {"head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 16}),
    ("GptOssForCausalLM", {"head_dim": 16, "sliding_window": 8}),
    ("DeepseekV3ForCausalLM", LATENT),
    ("Olmo2ForCausalLM", {}),
    ("CohereForCausalLM", {}),
    ("GraniteForCausalLM", {"attention_multiplier": 0.2, "residual_multiplier": 0.5, "logits_scaling": 3.0}),
    ("GPT2LMHeadModel", {}),
    ("GPTNeoXForCausalLM", {}),
    ("PhiForCausalLM", {}),
    ("OPTForCausalLM", {}),
    ("Starcoder2ForCausalLM", {"sliding_window": 8, "use_sliding_window": True}),
    ("SmolLM3ForCausalLM", {}),
    ("ApertusForCausalLM", {}),
    ("Exaone4ForCausalLM", {"sliding_window": 8}),
    ("Ernie4_5_MoeForCausalLM", {"moe_num_experts": 4, "moe_k": 2}),
    ("MixtralForCausalLM", {}),
    ("GemmaForCausalLM", {"head_dim": 16}),
    ("GlmForCausalLM", {"head_dim": 16}),
    ("DeepseekV2ForCausalLM", LATENT),
    ("MiniCPM3ForCausalLM", LATENT),
    ("DbrxForCausalLM", DBRX),
    ("PhimoeForCausalLM", {}),
    ("AfmoeForCausalLM", {"head_dim": 16, "sliding_window": 8, "num_dense_layers": 1}),
]


def make(directory: Path, name: str, **more: Any) -> Any:
    """Save a tiny random model, and return it with attention as its authors wrote it."""
    model_class = getattr(transformers, name)
    known = model_class.config_class()
    given = {key: value for key, value in (SIZES | more).items() if hasattr(known, key)}
    config = model_class.config_class(**given)
    config._attn_implementation = "eager"
    torch.manual_seed(3)
    model = model_class(config).eval().float()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.08)
    model.save_pretrained(directory)
    return model


def tokens_of(count: int) -> list[int]:
    return [(37 * i + 3) % VOCAB for i in range(count)]


@torch.inference_mode()
def reference(model: Any, tokens: list[int]) -> np.ndarray:
    logits: np.ndarray = model(torch.tensor([tokens])).logits[0].numpy()
    return logits


def off(native: np.ndarray, hf_model: np.ndarray) -> float:
    """Return the largest difference, relative to the largest logit."""
    assert native.shape == hf_model.shape
    return float(np.abs(native - hf_model).max() / np.abs(hf_model).max())


def in_chunks(driver: StepDriver, tokens: list[int]) -> np.ndarray:
    """Return a sequence's logits, computed in three chunks alongside another sequence."""
    other = tokens[::-1]
    got = [driver.step(Part(0, 0, tokens[:21]))[0]]
    got.append(driver.step(Part(1, 0, other[:9]), Part(0, 21, tokens[21:49]))[1])
    got.append(driver.step(Part(1, 9, other[9:10]), Part(0, 49, tokens[49:]))[1])
    return np.concatenate(got)


@pytest.mark.parametrize(("name", "more"), MODELS, ids=[name for name, _ in MODELS])
def test_logits_are_those_of_transformers(tmp_path: Path, name: str, more: dict[str, Any]) -> None:
    model = make(tmp_path, name, **more)
    tokens = tokens_of(50)
    driver = StepDriver(tmp_path, VOCAB, HIDDEN, by_transformers=True)
    assert off(in_chunks(driver, tokens), reference(model, tokens)) < 1e-4


def test_a_checkpoint_that_our_own_class_does_not_compute_runs_as_its_authors_wrote_it(tmp_path: Path) -> None:
    model = make(tmp_path, "LlamaForCausalLM", hidden_act="gelu")
    tokens = tokens_of(50)
    assert off(in_chunks(StepDriver(tmp_path, VOCAB, HIDDEN), tokens), reference(model, tokens)) < 1e-4


@pytest.mark.parametrize("name", ["OPTForCausalLM", "CTRLLMHeadModel", "Qwen2ForCausalLM"])
def test_only_the_rows_that_are_asked_for_come_back(tmp_path: Path, name: str) -> None:
    model = make(tmp_path, name)
    tokens = tokens_of(20)
    driver = StepDriver(tmp_path, VOCAB, HIDDEN, by_transformers=True)
    last, whole = driver.step(Part(0, 0, tokens, needs_all_logits=False), Part(1, 0, tokens[:9]))
    expected = reference(model, tokens)
    assert last.shape == (1, VOCAB)
    assert off(last, expected[-1:]) < 1e-4
    assert off(whole, expected[:9]) < 1e-4


@pytest.mark.parametrize(("quant_policy", "bound"), [(8, 0.03), (4, 0.4)])
def test_a_quantized_cache_is_near(tmp_path: Path, quant_policy: int, bound: float) -> None:
    model = make(tmp_path, "Qwen2ForCausalLM")
    tokens = tokens_of(50)
    driver = StepDriver(tmp_path, VOCAB, HIDDEN, quant_policy=quant_policy)
    assert 1e-4 < off(in_chunks(driver, tokens), reference(model, tokens)) < bound


def test_weights_of_16_bits_are_multiplied_as_they_are(tmp_path: Path) -> None:
    model = make(tmp_path, "LlamaForCausalLM").to(torch.bfloat16)
    model.save_pretrained(tmp_path)
    tokens = tokens_of(30)
    driver = StepDriver(tmp_path, VOCAB, HIDDEN, quant_policy=0)
    # The cache is of 16 bits too.
    assert off(driver.step(Part(0, 0, tokens))[0], reference(model.float(), tokens)) < 0.02


def test_a_row_is_the_same_alone_and_alongside_others(tmp_path: Path) -> None:
    make(tmp_path, "LlamaForCausalLM")
    tokens = tokens_of(30)
    driver = StepDriver(tmp_path, VOCAB, HIDDEN)
    alone = driver.step(Part(0, 0, tokens))[0]
    alongside = driver.step(Part(1, 0, tokens[::-1]), Part(2, 0, tokens), Part(3, 0, tokens[:7]))[1]
    assert off(alongside, alone) < 1e-5


@pytest.mark.parametrize(
    ("name", "more", "reason"),
    [
        ("DiffLlamaForCausalLM", {}, "layer 0 attends more than once a token"),
        ("DogeForCausalLM", {}, "its attention makes its own mask"),
        ("BertLMHeadModel", {"is_decoder": False}, "its attention looks ahead"),
        ("BloomForCausalLM", {}, "its code in transformers takes no other attention than its own"),
    ],
)
def test_what_cannot_work_is_refused_by_name(tmp_path: Path, name: str, more: dict[str, Any], reason: str) -> None:
    make(tmp_path, name, **more)
    with pytest.raises(UnsupportedModelError, match=reason):
        StepDriver(tmp_path, VOCAB, HIDDEN)


@pytest.mark.parametrize(
    ("name", "more"),
    [("LlamaForCausalLM", {"attention_bias": True}), ("GemmaForCausalLM", {}), ("GPT2LMHeadModel", {})],
)
def test_replaced_modules_keep_what_modelling_code_knows_of_them(
    tmp_path: Path, name: str, more: dict[str, Any]
) -> None:
    hf_model = make(tmp_path, name, **more)
    runner: Any = StepDriver(tmp_path, VOCAB, HIDDEN, by_transformers=True).runner
    native = runner._model._model
    replaced = 0
    for path, module in hf_model.named_modules():
        layer = native.get_submodule(path)
        if type(layer) is type(module):
            continue
        replaced += 1
        for attribute, value in vars(module).items():
            if isinstance(value, (bool, int, float, str)) and attribute[0] != "_" and attribute != "training":
                assert getattr(layer, attribute) == value, f"{path}.{attribute}"
        for attribute, value in module.named_parameters(recurse=False):
            assert torch.equal(getattr(layer, attribute) * 1, value), f"{path}.{attribute}"
    assert replaced > 5


def test_a_layer_that_keeps_what_no_cache_has_is_refused_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, "ZayaForCausalLM", head_dim=16, num_experts_per_tok=1)
    monkeypatch.setattr(recurrent_layers, "_KINDS", ())
    reason = r"model\.layers\.0\.self_attn\.qkv_proj computes something else alongside another sequence"
    with pytest.raises(UnsupportedModelError, match=reason):
        StepDriver(tmp_path, VOCAB, HIDDEN)


def test_modelling_code_that_fails_names_its_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "LlamaForCausalLM")
    monkeypatch.setattr(NativeLinear, "forward", lambda self, x: x.no_such_thing)
    with pytest.raises(UnsupportedModelError, match=r"model\.layers\.0\.self_attn\.q_proj cannot run here: Attribute"):
        StepDriver(tmp_path, VOCAB, HIDDEN, by_transformers=True)


def test_what_its_configuration_reports_is_refused_before_the_weights_are_read(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="layers of chunked_attention"):
        reject_unsupported(tmp_path, transformers.Llama4TextConfig(num_hidden_layers=2))
