"""Published checkpoints' config.json is read as it is, or refused by name with the reason.

The sizes are small, all else is as published. Of each architecture that is served, a checkpoint of random weights with
such a config.json gives the logits of ``transformers``.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from lmdeploy.errors import CheckpointError, UnsupportedModelError
from lmdeploy.offline.texts import rows_of
from lmdeploy.pytorch.models.hf_config import with_longrope
from lmdeploy.turbomind.checkpoint import describe
from tests.support import published
from tests.support.published import Publisher, as_is
from tests.support.tiny_models import fill_token_experts
from tests.support.token_engine import TokenEngine, relative_error
from tools.bench.random_model import write_tokenizer

Config = dict[str, Any]
ENCODERS = ("Bert", "MPNet", "XLMRoberta")
"""Beginnings of architectures of which states are compared, not logits."""
_FILE = Path(__file__).parents[1] / "data" / "published" / "configs.json"


def published_configs() -> dict[str, Config]:
    """Return the configs by name; the file has those of an architecture as differences from one another."""
    stored: dict[str, Config] = json.loads(_FILE.read_text(encoding="utf-8"))
    found: dict[str, Config] = {}
    for name, config in stored.items():  # each comes after the one it is like
        base = found.get(config.pop("like", ""), {})
        without = config.pop("without", ())
        found[name] = {key: value for key, value in base.items() if key not in without} | config
    return found


@dataclass(frozen=True)
class Made:
    """How a checkpoint is made that ``transformers`` runs, for an architecture that is published with its own code.

    ``architecture``: what runs it; ``fields``: from config.json to the fields of that architecture's config;
    ``publish``: rewrites what ``transformers`` saves in the published layout; ``forward``: returns the logits of
    tokens.
    """

    architecture: str
    fields: Callable[[Config], Config]
    publish: Publisher = as_is
    forward: Callable[[Any, list[int]], torch.Tensor] = lambda model, ids: model(torch.tensor([ids])).logits[0]


def _default(theta: float, **more: float) -> Config:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta, **more}}


def _same(**changes: Any) -> Callable[[Config], Config]:
    """Return the fields as they are, but those of the code."""
    of_the_code = ("_attn_implementation", "architectures", "attn_implementation", "auto_map", "model_type")
    return lambda raw: {key: value for key, value in raw.items() if key not in of_the_code} | changes


def _internlm2(raw: Config) -> Config:
    return {**_same(rope_scaling=None)(raw), **_default(raw["rope_theta"])}  # dynamic from a length on


def _qwen(raw: Config) -> Config:
    return _same(
        intermediate_size=raw["intermediate_size"] // 2,
        rms_norm_eps=raw["layer_norm_epsilon"],
        num_key_value_heads=raw["num_attention_heads"],
        use_sliding_window=False,
    )(raw) | _default(raw["rotary_emb_base"])


def _chatglm(raw: Config) -> Config:
    return {
        "vocab_size": raw["padded_vocab_size"],
        "hidden_size": raw["hidden_size"],
        "intermediate_size": raw["ffn_hidden_size"],
        "num_hidden_layers": raw["num_layers"],
        "num_attention_heads": raw["num_attention_heads"],
        "num_key_value_heads": raw["multi_query_group_num"],
        "head_dim": raw["kv_channels"],
        "rms_norm_eps": raw["layernorm_epsilon"],
        "attention_bias": raw["add_qkv_bias"],
        "pad_token_id": 0,
        "tie_word_embeddings": False,
    } | _default(10000.0 * raw.get("rope_ratio", 1), partial_rotary_factor=0.5)


def _below(prefix: str, publish: Publisher) -> Publisher:
    """Return the function that writes the tensors of a decoder as those of a model that sees."""

    def publish_below(directory: Path) -> None:
        publish(directory)
        file = directory / "model.safetensors"
        save_file({prefix + name: tensor for name, tensor in load_file(file).items()}, file)

    return publish_below


def _exaone(raw: Config) -> Config:
    return _same(num_hidden_layers=raw["num_layers"], rms_norm_eps=raw["layer_norm_epsilon"])(raw)


def _rw(raw: Config) -> Config:
    sizes = {"num_hidden_layers": raw["n_layer"], "num_attention_heads": raw["n_head"]}
    return _same(**sizes, num_kv_heads=raw["n_head_kv"], new_decoder_architecture=True)(raw)


def _mixformer(raw: Config) -> Config:
    return {
        "vocab_size": raw["vocab_size"],
        "hidden_size": raw["n_embd"],
        "intermediate_size": 4 * raw["n_embd"],
        "num_hidden_layers": raw["n_layer"],
        "num_attention_heads": raw["n_head"],
    } | _default(10000.0, partial_rotary_factor=raw["rotary_dim"] * raw["n_head"] / raw["n_embd"])


def _text(raw: Config) -> Config:
    return _same()(raw["text_config"])


def _step(raw: Config) -> Config:
    layers = {"moe_layers_enum": list(range(raw["first_k_dense_replace"], raw["num_hidden_layers"]))}
    text = _same(n_routed_experts=raw["num_experts"], **layers)(raw)
    vision = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28}
    return {"text_config": text, "vision_config": vision, "tie_word_embeddings": False}


def _minicpm(raw: Config) -> Config:
    return _same(
        tie_word_embeddings=False,
        embedding_multiplier=raw["scale_emb"],
        residual_multiplier=raw["scale_depth"] / raw["num_hidden_layers"] ** 0.5,
        logits_scaling=raw["hidden_size"] / raw["dim_model_base"],
        attention_multiplier=(raw["hidden_size"] / raw["num_attention_heads"]) ** -0.5,
    )(raw)


def _dbrx(raw: Config) -> Config:
    ffn, attention = raw["ffn_config"], raw["attn_config"]
    clip = attention["clip_qkv"] or 1e9  # `transformers` cannot do without
    return _same(
        attn_config=attention | {"clip_qkv": clip}, ffn_config=ffn | {"ffn_act_fn": {"name": ffn["ffn_act_fn"]}}
    )(raw)


MADE = {
    "BaichuanForCausalLM": Made(
        "LlamaForCausalLM", _same(), published.baichuan, published.normalized_head_forward
    ),  # 2, 7B: its head is known by the size of its vocabulary
    "ChatGLMForConditionalGeneration": Made("GlmForCausalLM", _chatglm, published.chatglm),
    "ChatGLMModel": Made("GlmForCausalLM", _chatglm, published.chatglm),
    "DbrxForCausalLM": Made("DbrxForCausalLM", _dbrx),
    "DeepseekV4ForCausalLM": Made("DeepseekV4ForCausalLM", _same(), published.deepseek_v4),
    "ExaoneForCausalLM": Made("LlamaForCausalLM", _exaone, published.exaone),
    "InternLM2ForCausalLM": Made("LlamaForCausalLM", _internlm2, published.internlm2),
    "InternLMForSequenceClassification": Made("LlamaForSequenceClassification", _same(attention_bias=True)),
    "InternVLChatModel": Made(
        "LlamaForCausalLM", lambda raw: _internlm2(raw["llm_config"]), _below("language_model.", published.internlm2)
    ),
    "KimiK25ForConditionalGeneration": Made("DeepseekV3ForCausalLM", _text, _below("language_model.", as_is)),
    "KimiLinearForCausalLM": Made("KimiLinearForCausalLM", _same(), published.kimi_linear),
    "Lfm2VlForConditionalGeneration": Made("Lfm2ForCausalLM", _text, _below("language_model.", as_is)),
    "LlavaLlamaForCausalLM": Made("LlamaForCausalLM", _same()),
    "LogicsForConditionalGeneration": Made("Qwen3ForCausalLM", _same()),
    "Maira2ForConditionalGeneration": Made(
        "Phi3ForCausalLM", lambda raw: with_longrope(_text(raw)), _below("language_model.", as_is)
    ),
    "MiMoForCausalLM": Made("Qwen2ForCausalLM", _same(), published.mimo),
    "MiniMaxM3ForCausalLM": Made("MiniMaxM3VLForCausalLM", _same(), published.minimax_m3),
    "Phi3VForCausalLM": Made("Phi3ForCausalLM", lambda raw: _same(pad_token_id=0)(with_longrope(raw))),
    "MiniCPMV": Made("GraniteForCausalLM", _minicpm, _below("llm.", as_is)),
    "MixFormerSequentialForCausalLM": Made("PhiForCausalLM", _mixformer, published.mixformer),
    "PhiMoEForCausalLM": Made("PhimoeForCausalLM", _same()),
    "Phi4MMForCausalLM": Made(
        "Phi3ForCausalLM", lambda raw: _same(pad_token_id=0)(with_longrope(raw)), published.phi4_multimodal
    ),
    "QWenLMHeadModel": Made("Qwen2ForCausalLM", _qwen, published.qwen),
    "RWForCausalLM": Made("FalconForCausalLM", _rw, published.rw),
    "Step3p7FlashForCausalLM": Made("Step3p7ForConditionalGeneration", _step),
    "VoxtralForConditionalGeneration": Made("LlamaForCausalLM", _text, _below("language_model.", as_is)),
    "XverseForCausalLM": Made("LlamaForCausalLM", _same()),
}
_MODEL_TYPES = {"kimi_k2": "deepseek_v3"}  # of code that is `transformers`' own, under another name
_TEXTS = {"qwen3_5_moe_text": "Qwen3_5MoeForCausalLM"}  # saved under the name of the whole


def make_published(directory: Path, raw: Config) -> Callable[[list[int]], torch.Tensor]:
    """Make a random checkpoint with this config.json; return what computes logits, or an encoder's states, in
    ``transformers``."""
    unquantized = _unquantized(raw)
    (name,) = unquantized["architectures"]
    made = MADE.get(name) or Made(_TEXTS.get(str(unquantized.get("model_type")), name), lambda raw: raw)
    model_class = getattr(transformers, made.architecture)
    fields = made.fields(unquantized)
    kind = fields.get("model_type", "")
    config_class = (
        model_class.config_class if kind in (*_MODEL_TYPES, "") else type(transformers.AutoConfig.for_model(kind))
    )
    config = config_class.from_dict(
        {key: value for key, value in fields.items() if key not in ("auto_map", "model_type")}
    )
    for part in (config, config.get_text_config()):
        part.initializer_range = 0.2  # else logits are flat
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = model_class(config)
        _randomize(model)
    model.save_pretrained(directory)
    model = model_class.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
    made.publish(directory)
    (directory / "config.json").write_text(json.dumps(unquantized), encoding="utf-8")
    write_tokenizer(directory)
    if name.startswith(ENCODERS):
        return lambda ids: model.base_model(torch.tensor([ids])).last_hidden_state[0]
    if model.get_output_embeddings() is None:  # a body: the engine ties its head
        return lambda ids: (
            model.base_model(torch.tensor([ids])).last_hidden_state[0] @ model.get_input_embeddings().weight.T
        )
    return lambda ids: made.forward(model, ids)


def _unquantized(raw: Mapping[str, Any]) -> Config:
    """Return a config.json without what says that weights are codes, which other tests write."""
    return {
        key: _unquantized(value) if key in ("text_config", "llm_config") else value
        for key, value in raw.items()
        if key not in ("quantization_config", "quantization")
    }


def _randomize(model: Any) -> None:
    """Give values to what ``transformers`` starts where it cannot be seen."""
    for name, parameter in (*model.named_parameters(), *model.named_buffers()):
        if parameter.dim() == 1 and "inv_freq" not in name and parameter.is_floating_point():
            mean = float(parameter.detach().mean()) if "norm" in name or "scal" in name else 0.0
            torch.nn.init.normal_(parameter, mean=mean, std=0.3)
        elif parameter.dim() > 1 and parameter.is_floating_point() and not parameter.any():
            torch.nn.init.normal_(parameter, std=0.2)
    fill_token_experts(model)
    torch.nn.init.normal_(model.get_input_embeddings().weight, std=0.2)  # the padding's row too


CONFIGS = published_configs()
PROMPT = [(37 * i * i + 11 * i) % 900 + 100 for i in range(45)]
TOLERANCE = 1e-4

# Architectures that are not served: a part of the reason, and the names. Support deletes a line.
REJECTED: dict[str, tuple[str, ...]] = {
    "DFlash drafts": ("DFlash--27b-draft",),
    "EAGLE-3 heads": ("SpecForge--deepseek-v3-671b-eagle3",),
    "is not supported: no family describes it": (
        "Salesforce--xgen-mm-phi3-mini-instruct",
        "inclusionAI--Ming-Lite-Omni",
    ),
    "situ": ("moonshotai--Kimi-K3",),
    "gegelu": ("microsoft--Phi-3-small-8k-instruct",),
    "ChatGLM-6B": ("THUDM--chatglm-6b-slim",),
    "names no architecture": ("community--llama3v",),
    "config.json: hidden_size must be a whole number >= 1, got None": (
        "ai21labs--Jamba-v0.1--cut",
        "nvidia--NVIDIA-Nemotron-Nano-9B-v2--mock",
    ),
}

# Why a config that is read is not compared here.
NOT_COMPARED = {
    "Alibaba-NLP--gte-Qwen2-7B-instruct": "attends both ways, which decoders of this engine do not",
    "allenai--Molmo-7B-D-0924--bnb-nf4": "transformers lacks it: test_lite_families.py makes one of a Qwen2",
    "internlm--internlm2-7b-reward": "a reward model: test_score_heads.py makes one of a Llama",
    "deepseek-ai--DeepSeek-OCR-2": "its text part is DeepSeek-MoE's: test_model_families.py makes one of a Qwen2-MoE",
    "jinaai--jina-embeddings-v2-base-en": "transformers lacks it: tests/engine/test_encoders.py has a reference",
    "meta-llama--Llama-4-Maverick-17B-128E-Instruct": "leaves out the sizes of its tower, of 400 million weights",
    "meta-llama--Llama-4-Scout-17B-16E-Instruct": "leaves out the sizes of its tower, of 400 million weights",
    "nvidia--Llama-3_3-Nemotron-Super-49B-v1": "transformers lacks it: test_model_families.py makes one of a Llama",
}


def name_of(raw: Config) -> str:
    return str((raw.get("architectures") or [""])[0])


def reading_of(directory: Path, raw: Config) -> str:
    """Return why a config.json is not read; empty: it is, and only the weights are missing."""
    (directory / "config.json").write_text(json.dumps(raw))
    try:
        describe(directory, "model")
    except UnsupportedModelError as error:
        return str(error)
    except CheckpointError as error:
        return "; ".join(it for it in error.problems if not it.startswith("has no *.safetensors file"))
    raise AssertionError("a checkpoint without weights was described")


def test_every_config_is_read_or_refused_by_name(tmp_path: Path) -> None:
    found = {name: reading_of(tmp_path, raw) for name, raw in CONFIGS.items()}
    rejected = {name: part for part, names in REJECTED.items() for name in names}
    assert {name for name, reason in found.items() if reason} == rejected.keys()
    assert [(name, found[name]) for name, part in rejected.items() if part not in found[name]] == []


READ = CONFIGS.keys() - {name for names in REJECTED.values() for name in names}
COMPARED = [name for name in CONFIGS if name in READ and name not in NOT_COMPARED]


@pytest.mark.alike(max_cases=14)
@pytest.mark.parametrize("name", COMPARED)
def test_a_checkpoint_with_a_published_config_gives_the_logits_of_transformers(name: str, tmp_path: Path) -> None:
    logits_of = make_published(tmp_path / "model", CONFIGS[name])
    with torch.no_grad(), TokenEngine(tmp_path / "model") as engine:
        if name_of(CONFIGS[name]).startswith(ENCODERS):
            (states,) = rows_of(engine.engine, [(PROMPT, None)], of_tokens=True)
            assert relative_error(torch.tensor(states), logits_of(PROMPT)) < TOLERANCE
            return
        response, logits = engine.generate(PROMPT, 4, "all")
        assert relative_error(logits, logits_of(PROMPT + response[:-1])) < TOLERANCE
