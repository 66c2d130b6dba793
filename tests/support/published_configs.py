"""The config.json of published checkpoints, with small sizes and everything else as it is, and models made of them."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

from lmdeploy.pytorch.models.hf_config import with_longrope
from tests.support import published
from tests.support.published import Publisher, as_is
from tools.bench.random_model import write_tokenizer

Config = dict[str, Any]
ENCODERS = ("Bert", "MPNet", "XLMRoberta")
"""Beginnings of architectures of which states are compared, not logits."""
_FILE = Path(__file__).parents[1] / "data" / "published" / "configs.json"


def published_configs() -> dict[str, Config]:
    """Return the configs by name; the file has those of an architecture as differences from one another."""
    stored: dict[str, Config] = json.loads(_FILE.read_text(encoding="utf-8"))
    found: dict[str, Config] = {}
    for name, own in stored.items():  # each comes after the one it is like
        base = found.get(own.pop("like", ""), {})
        without = own.pop("without", ())
        found[name] = {key: value for key, value in base.items() if key not in without} | own
    return found


@dataclass(frozen=True)
class Made:
    """How a checkpoint is made that ``transformers`` runs, for an architecture that is published with its own code.

    Attributes
    ----------
    architecture
        What runs it.
    fields
        From config.json to the fields of that architecture's config.
    publish
        Rewrites what ``transformers`` saves in the published layout.
    forward
        Returns the logits of tokens.
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
    """Return what writes the tensors of a decoder as those of a model that sees."""

    def publish_below(directory: Path) -> None:
        publish(directory)
        file = directory / "model.safetensors"
        save_file({prefix + name: tensor for name, tensor in load_file(file).items()}, file)

    return publish_below


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
    "InternLM2ForCausalLM": Made("LlamaForCausalLM", _internlm2, published.internlm2),
    "InternLMForSequenceClassification": Made("LlamaForSequenceClassification", _same(attention_bias=True)),
    "InternVLChatModel": Made(
        "LlamaForCausalLM", lambda raw: _internlm2(raw["llm_config"]), _below("language_model.", published.internlm2)
    ),
    "KimiLinearForCausalLM": Made("KimiLinearForCausalLM", _same(), published.kimi_linear),
    "LlavaLlamaForCausalLM": Made("LlamaForCausalLM", _same()),
    "MiMoForCausalLM": Made("Qwen2ForCausalLM", _same(), published.mimo),
    "Phi3VForCausalLM": Made("Phi3ForCausalLM", lambda raw: _same(pad_token_id=0)(with_longrope(raw))),
    "PhiMoEForCausalLM": Made("PhimoeForCausalLM", _same()),
    "QWenLMHeadModel": Made("Qwen2ForCausalLM", _qwen, published.qwen),
}
_MODEL_TYPES = {"kimi_k2": "deepseek_v3"}  # of code that is `transformers`' own, under another name
_TEXTS = {"qwen3_5_moe_text": "Qwen3_5MoeForCausalLM"}  # saved under the name of the whole


def make_published(directory: Path, raw: Config) -> Callable[[list[int]], torch.Tensor]:
    """Make a random checkpoint with this config.json; return what computes logits, or an encoder's states, in
    ``transformers``."""
    plain = _unquantized(raw)
    (name,) = plain["architectures"]
    made = MADE.get(name) or Made(_TEXTS.get(str(plain.get("model_type")), name), lambda raw: raw)
    model_class = getattr(transformers, made.architecture)
    fields = made.fields(plain)
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
    (directory / "config.json").write_text(json.dumps(plain), encoding="utf-8")
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
    torch.nn.init.normal_(model.get_input_embeddings().weight, std=0.2)  # the padding's row too
