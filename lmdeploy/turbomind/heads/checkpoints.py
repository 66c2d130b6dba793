"""Checkpoints of heads: spec and tensors of each kind.

Sources of names and formulas: DeepSeek-V3's README of its weights and report (arXiv 2412.19437), the indices of
Qwen3-Next's and Qwen3.5's checkpoints, the checkpoints and configurations published with EAGLE (arXiv 2401.15077) and
EAGLE-3 (arXiv 2503.01840).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lmdeploy.errors import CheckpointError, UnsupportedModelError
from lmdeploy.turbomind.checkpoint import read_config
from lmdeploy.turbomind.families import family_of, qwen
from lmdeploy.turbomind.families.common import Checkpoint, reject_unless
from lmdeploy.turbomind.families.layout import Layout, attention_tensors, linear_tensors
from lmdeploy.turbomind.manifest import WEIGHT_DTYPES, Expression, Load
from lmdeploy.turbomind.safetensors_index import SafetensorsIndex
from lmdeploy.turbomind.spec import HeadSpec, ModelSpec, OutputSpec

MTP_ARCHITECTURE = "DeepseekV3ForCausalLM"
# Whose layer lies under names of its own.
MTP_LAYOUTS = {
    "Qwen3NextForCausalLM": qwen.QWEN3_NEXT_LAYOUT,
    "Qwen3_5ForCausalLM": qwen.QWEN3_5_LAYOUT,
    "Qwen3_5MoeForCausalLM": qwen.QWEN3_5_MOE_LAYOUT,
}
_SHARED = {"token_embedding": "token_embedding", "lm_head.weight": "lm_head.weight", "lm_head.bias": "lm_head.bias"}


@dataclass(frozen=True)
class Head:
    """A head of some model."""

    spec: ModelSpec  # what it is
    tensors: Mapping[str, Expression]  # the expressions of its engine tensors over its own checkpoint
    shared: Mapping[str, str]  # engine tensors that are the model's, under these names there


def mtp_head(target: ModelSpec, index: SafetensorsIndex) -> Head:
    """Return the layer after the last of DeepSeek-V3, Qwen3-Next or Qwen3.5, whose checkpoint has these tensors.

    With more such layers, the first drafts all tokens. Raises `UnsupportedModelError` if the model is another one, or
    its checkpoint has no such layer.
    """
    known = (MTP_ARCHITECTURE, *MTP_LAYOUTS)
    reject_unless(
        target.architecture in known,
        f"method mtp for {target.architecture}: the layer of {', '.join(known)} is read; another",
    )
    layout = MTP_LAYOUTS.get(target.architecture)
    number = target.num_layers
    prefix = f"model.layers.{number}." if layout is None else "mtp."
    join = f"{prefix}eh_proj.weight" if layout is None else "mtp.fc.weight"
    if join not in index.tensors:
        raise UnsupportedModelError(f"{target.model_name} has no layer that predicts further tokens: {join} is missing")
    hidden, vocab = target.hidden_size, target.vocab_size
    moe = target.moe and replace(target.moe, layers=(target.moe.layers[-1] if target.moe.layers else True,))
    spec = replace(
        target,
        num_layers=1,
        moe=moe,
        layer_ropes=(),
        layer_mixers=(),
        recurrence=None,
        tied_embeddings=False,
        head=HeadSpec("mtp", hidden),
    )
    if layout is None:
        layout = Layout(number=lambda layer: number + layer, final_norm=f"{prefix}shared_head.norm")
        norms = f"{prefix}enorm.weight", f"{prefix}hnorm.weight"
    else:
        layout = replace(layout, layer="mtp.layers.{}.", final_norm="mtp.norm")
        norms = "mtp.pre_fc_norm_embedding.weight", "mtp.pre_fc_norm_hidden.weight"
    tensors = dict(layout.tensors(spec))
    tensors |= {"head.join.weight": Load(join, (hidden, 2 * hidden))}
    for name, stored in zip(("embedding", "hidden"), norms, strict=True):
        tensors[f"head.{name}_norm.weight"] = Load(stored, (hidden,))
    names = {"token_embedding": f"{prefix}embed_tokens.weight", "lm_head.weight": f"{prefix}shared_head.head.weight"}
    shared = _take_stored(tensors, names, (vocab, hidden), index)
    return Head(spec, tensors, shared)


def eagle_head(target: ModelSpec, directory: Path, index: SafetensorsIndex, kind: str) -> Head:
    """Return the head in a folder.

    Raises `UnsupportedModelError` if it is of a form that is not read, and `CheckpointError` if its config.json is
    invalid. ``target``: the model it drafts for. ``directory``, ``index``: the folder, and what tensors are there.
    ``kind``: ``eagle`` or ``eagle3``.
    """
    raw = read_config(directory)
    reject_unless(not raw.get("quantization_config"), "a quantized head (quantization_config)")
    reject_unless(not raw.get("dflash_config"), "a DFlash draft (dflash_config)")
    reject_unless(not raw.get("norm_before_residual"), "a head with norm_before_residual")
    reject_unless(not raw.get("norm_before_fc"), "a head with norm_before_fc")
    has_three = kind == "eagle3"
    first = "midlayer." if has_three and "midlayer.hidden_norm.weight" in index.tensors else "layers.0."
    is_eagle3 = f"{first}hidden_norm.weight" in index.tensors
    if is_eagle3 != has_three:
        raise UnsupportedModelError(
            f"{directory} is a head of the method {'eagle3' if is_eagle3 else 'eagle'}, not {kind}"
        )
    spec = _llama_spec(target, directory, raw, index, f"{first}self_attn.q_proj.bias" in index.tensors)
    hidden, vocab = spec.hidden_size, spec.vocab_size
    reject_unless(not has_three or spec.num_layers == 1, "a head of the method eagle3 with several layers")
    layout = Layout(final_norm="norm", layer=first if has_three else "layers.{}.")
    tokens = _tokens_of(directory, index, vocab) if has_three else ()
    spec = replace(
        spec,
        output=OutputSpec() if has_three else target.output,
        head=HeadSpec(
            kind,
            target.hidden_size,
            target_layers=_target_layers(target, raw) if has_three else (),
            bias="fc.bias" in index.tensors,
            tokens=tokens,
        ),
    )
    tensors = dict(layout.tensors(replace(spec, output=OutputSpec())))
    inputs = 3 * target.hidden_size if has_three else 2 * hidden
    tensors |= linear_tensors("head.join", {"fc": hidden}, inputs, "fc.bias" in index.tensors)
    if has_three:
        tensors["head.hidden_norm.weight"] = Load(f"{first}hidden_norm.weight", (hidden,))
        doubled = attention_tensors(replace(spec, hidden_size=2 * hidden), layout, first, 0)
        tensors |= {f"layers.0.{name}": expression for name, expression in doubled.items() if ".qkv." in name}
        tensors["lm_head.weight"] = Load("lm_head.weight", (len(tokens) or vocab, hidden))
        shared = _take_stored(tensors, {"token_embedding": "embed_tokens.weight"}, (vocab, hidden), index)
    else:
        del tensors["layers.0.attention_norm.weight"], tensors["final_norm.weight"], tensors["lm_head.weight"]
        shared = _take_stored(tensors, {"token_embedding": "embed_tokens.weight"}, (vocab, hidden), index)
        shared |= {"lm_head.weight": "lm_head.weight"} | (
            {"lm_head.bias": "lm_head.bias"} if target.output.bias else {}
        )
    if shared and hidden != target.hidden_size:
        raise UnsupportedModelError(
            f"{directory} has hidden_size {hidden}, its model {target.hidden_size}, and no embeddings of its own"
        )
    return Head(spec, tensors, shared)


def _llama_spec(
    target: ModelSpec, directory: Path, raw: Mapping[str, Any], index: SafetensorsIndex, qkv_bias: bool
) -> ModelSpec:
    from huggingface_hub.errors import StrictDataclassError
    from transformers import LlamaConfig

    types = [WEIGHT_DTYPES[info.dtype] for info in index.tensors.values() if info.dtype in WEIGHT_DTYPES]
    dtype = max(sorted(set(types)), key=types.count, default=target.dtype)
    checkpoint = Checkpoint("LlamaForCausalLM", directory.name, dtype, None)
    try:
        config = LlamaConfig.from_dict({**raw, "model_type": "llama", "vocab_size": target.vocab_size})
        spec = family_of(["LlamaForCausalLM"])[1].spec(config, checkpoint)
    except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, StrictDataclassError) as error:
        raise CheckpointError(directory, [f"config.json is invalid: {' '.join(str(error).split())}"]) from error
    attention = replace(spec.attention, qkv_bias=qkv_bias)
    return replace(spec, attention=attention, tied_embeddings=False)


def _take_stored(
    tensors: dict[str, Expression], names: Mapping[str, str], shape: tuple[int, ...], index: SafetensorsIndex
) -> dict[str, str]:
    """Give engine tensors the checkpoint's own where it has them; return those of the model for the others."""
    shared = {}
    for name, stored in names.items():
        if stored in index.tensors:
            tensors[name] = Load(stored, shape)
        else:
            tensors.pop(name, None)
            shared[name] = _SHARED[name]
    return shared


def _target_layers(target: ModelSpec, raw: Mapping[str, Any]) -> tuple[int, ...]:
    """Return in front of which of the model's layers hidden states are taken: low, middle and high."""
    count = target.num_layers
    name = "eagle_aux_hidden_state_layer_ids"
    layers = tuple(raw.get(name) or (2, count // 2, count - 3))
    if after := (raw.get("eagle_config") or {}).get(name):  # whose numbers are those of the layers before
        layers = tuple(layer + 1 if isinstance(layer, int) else layer for layer in after)
    if len(layers) != 3 or not all(isinstance(layer, int) and 0 <= layer < count for layer in layers):
        raise UnsupportedModelError(f"a head reads three of the model's {count} layers, not {layers}")
    return layers


def _tokens_of(directory: Path, index: SafetensorsIndex, vocab: int) -> tuple[int, ...]:
    """Return the model's tokens in the order of the head's logits; none where these are all tokens.

    ``d2t`` holds how far the token is after the logit.
    """
    if "d2t" not in index.tensors:
        return ()
    tokens = tuple(i + int(offset) for i, offset in enumerate(index.tensor("d2t").tolist()))
    if len(set(tokens)) != len(tokens) or not all(0 <= token < vocab for token in tokens):
        raise CheckpointError(directory, [f"d2t must name different tokens below {vocab}"])
    return tokens
