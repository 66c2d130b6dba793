"""Checkpoint reader, from a Hugging Face directory to spec and manifest, without weights."""

import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from lmdeploy.errors import CheckpointError, UnsupportedModelError
from lmdeploy.model_metadata.pooling import engine_pooling, max_text_len, module_steps
from lmdeploy.model_metadata.task_adapters import is_of_task
from lmdeploy.turbomind.families import family_of, jina
from lmdeploy.turbomind.families.common import Checkpoint, Family
from lmdeploy.turbomind.families.encoders import encoder_names, is_of_head
from lmdeploy.turbomind.gguf.stored import (
    describe_upcast,
    has_default_rope,
    stored_architecture,
    stored_dtype,
    stored_spec,
    stored_tensors,
)
from lmdeploy.turbomind.headless import HEAD_TENSORS, is_headless, with_whole
from lmdeploy.turbomind.manifest import WEIGHT_DTYPES, Expression, Load, Manifest, find_problems, walk
from lmdeploy.turbomind.mxfp4 import with_mxfp4
from lmdeploy.turbomind.quantized import (
    Quantization,
    is_zero_bias_of_quantized,
    quantization_settings,
    weight_format,
    with_quantized,
)
from lmdeploy.turbomind.row_quantized import row_schemes, with_block_quantized, with_row_quantized
from lmdeploy.turbomind.safetensors_index import SafetensorsIndex, read_checkpoint
from lmdeploy.turbomind.scaled import ScaledWeights, is_unused, with_scales
from lmdeploy.turbomind.spec import EncoderSpec, ModelSpec
from lmdeploy.turbomind.spec.fields import size_problems
from lmdeploy.turbomind.stacked_experts import with_stacks
from lmdeploy.turbomind.text_part import (
    TextPart,
    is_of_text,
    spec_in,
    tensors_in,
    text_alone,
    text_part_of,
    with_stored_output,
)
from lmdeploy.turbomind.unsupported import reject_unsupported

logger = logging.getLogger(__name__)

# Sizes that a config may leave out, in the names of all families.
_OPTIONAL_SIZES = (
    "num_key_value_heads", "head_dim", "max_position_embeddings", "num_kv_heads", "multi_query_group_num",
    "ffn_hidden_size", "model_max_length", "intermediate_size",
)  # fmt: skip
# Buffers that some versions of some models save and every engine computes.
_COMPUTED_BUFFER = re.compile(
    r"^rope_(freqs|factors_long|factors_short)\.weight$|(^|\.)(rotary_emb\.(inv_freq|cos_cached|sin_cached)|rotary_pos_emb\.inv_freq|self_attn\.(slope_rate|(query|key|diagonal)_decay)|(attn|attention)\.(masked_)?bias|attn\.causal_mask|act_fn\.eps|future_mask|ple_embedding\.(layer_multipliers|ngram_heads_(offsets|vocab_sizes)))$"
)
_SHOWN_EXTRA = 8


@dataclass(frozen=True)
class Description:
    """A checkpoint in the engine's terms."""

    spec: ModelSpec
    manifest: Manifest


def describe(model_dir: Path, model_name: str) -> Description:
    """Return spec and manifest of a Hugging Face directory.

    Raises `UnsupportedModelError` if the engine cannot run this model, and `CheckpointError` if the checkpoint is
    missing, truncated, half-written or contradicts itself; lists everything wrong.
    """
    raw = read_config(model_dir)
    reject_unsupported(raw)
    text = text_part_of(model_dir, raw)  # None: the model is all text
    config = raw if text is None else text.raw
    architecture, family = _family_of(config)
    quantization, scaled = Quantization.from_config(raw), ScaledWeights.from_config(raw)
    index = read_checkpoint(model_dir)
    size_problems = _size_problems(config, family.sizes)
    if size_problems:
        raise CheckpointError(model_dir, size_problems + index.problems)
    gguf = stored_architecture(raw)  # None: the weights are no GGUF file's
    dtype = _dtype_of(index, scaled) if gguf is None else stored_dtype(index)
    checkpoint = Checkpoint(architecture, model_name, dtype, bos_token_of(model_dir, config))
    spec = _spec_of(model_dir, config, family, checkpoint, text)
    if raw.get("is_causal") is False and "Pooling" in dict(module_steps(model_dir)):  # gte-Qwen2
        spec = replace(spec, encoder=spec.encoder or EncoderSpec())
    if text is not None:
        spec = spec_in(spec, text)
    elif spec.encoder is not None:
        max_len = min(spec.max_position_embeddings, max_text_len(model_dir) or spec.max_position_embeddings)
        encoder = replace(spec.encoder, pooling=engine_pooling(model_dir, raw))
        spec = replace(spec, encoder=encoder, max_position_embeddings=max_len)
    elif is_headless(raw, index):
        spec = replace(spec, tied_embeddings=True)
    if gguf is not None:
        spec = stored_spec(spec, gguf, raw)
        if sentence := describe_upcast(index):
            logger.warning("%s: %s", model_dir, sentence)
    whole = replace(spec, tied_embeddings=spec.encoder is not None)
    tensors = family.tensors(whole) if gguf is None else stored_tensors(whole, gguf, index)
    if spec.encoder is not None:
        tensors = encoder_names(tensors, index)
    else:
        tensors = tensors if gguf is not None else tensors_in(tensors, index)  # GGUF has names of its own
        tensors, spec = with_stored_output(tensors, spec, index)
    tensors = with_mxfp4(with_stacks(tensors, index), index)
    if quantization is not None:
        tensors = with_quantized(tensors, quantization, index)
    if scaled is not None:
        tensors = with_row_quantized(tensors, row_schemes(raw), index)
        tensors = with_scales(tensors, scaled, index)
    tensors = with_block_quantized(tensors, raw, index)
    unread = _unread_tensors(tensors, index)
    problems = find_problems(tensors, index) + _bias_problems(unread, tensors)
    if problems:
        raise CheckpointError(model_dir, problems)
    is_known = _is_head_or_task if spec.encoder is not None else lambda name: text is not None and not is_of_text(name)
    _warn_of([name for name in unread if not is_known(name)], model_dir)
    manifest = Manifest.build(tensors, index, weight_format(raw))
    return Description(spec, manifest)


def _is_head_or_task(name: str) -> bool:
    """Return whether an encoder's tensor is read from elsewhere, if at all."""
    return is_of_head(name) or is_of_task(name)


def read_config(model_dir: Path, name: str = "config.json") -> dict[str, Any]:
    """Return a JSON object file of a checkpoint; raise `CheckpointError` if the file is missing or no JSON object."""
    try:
        config = json.loads((model_dir / name).read_text(encoding="utf-8"), object_hook=_number_of)
    except FileNotFoundError as error:
        raise CheckpointError(model_dir, [f"{name} is missing"]) from error
    except (OSError, ValueError) as error:
        raise CheckpointError(model_dir, [f"{name} cannot be read ({error})"]) from error
    if not isinstance(config, dict):
        raise CheckpointError(model_dir, [f"{name} must hold a JSON object, got {type(config).__name__}"])
    if name == "config.json" and (given := quantization_settings(model_dir, config, read_config)) is not None:
        config["quantization_config"] = given
    return config


def _number_of(content: dict[str, Any]) -> object:
    """Return the number that ``transformers`` writes as ``{"__float__": "Infinity"}``, or an object as it is."""
    return float(content["__float__"]) if content.keys() == {"__float__"} else content


def _family_of(config: dict[str, Any]) -> tuple[str, Family]:
    if jina.is_published(config):
        return family_of(["JinaEmbeddingsV3Model"])
    try:
        return family_of([alone] if (alone := text_alone(config)) else with_whole(config.get("architectures")))
    except UnsupportedModelError as error:
        if not config.get("auto_map"):
            raise
        raise UnsupportedModelError(f"{error}; the checkpoint's own code is never run") from None


def _size_problems(config: dict[str, Any], required: Sequence[str]) -> list[str]:
    """Return the errors of the sizes, before ``transformers`` divides by them or fills in another model's."""
    required = [next((name for name in names.split("|") if name in config), names) for names in required]
    names = dict.fromkeys((*required, *_OPTIONAL_SIZES))
    if "qk_nope_head_dim" in config:
        names.pop("head_dim", None)  # of the rotated part of a latent key, which may be nothing
    given = {f"config.json: {n}": config.get(n) for n in names if n in required or config.get(n) is not None}
    if isinstance(by_layer := config.get("intermediate_size"), list):
        del given["config.json: intermediate_size"]
        given |= {f"config.json: intermediate_size[{layer}]": size for layer, size in enumerate(by_layer)}
    problems = size_problems(given)
    if not problems and config.get("head_dim") is None and config.get("kv_channels") is None:
        hidden, heads = config.get("hidden_size", 0), config.get("num_attention_heads", 1)
        if hidden % heads:
            problems.append(f"config.json: hidden_size must be a multiple of num_attention_heads {heads}, got {hidden}")
    return problems


def _spec_of(
    model_dir: Path, raw: dict[str, Any], family: Family, checkpoint: Checkpoint, text: TextPart | None
) -> ModelSpec:
    from huggingface_hub.errors import StrictDataclassError

    try:
        if has_default_rope(raw):  # needs no `transformers`, whose import takes seconds
            config: Any = SimpleNamespace(**raw)
        elif text is not None:
            config = text.config
        elif family.config is None:
            from transformers import AutoConfig

            config = AutoConfig.from_pretrained(model_dir, trust_remote_code=False)
        else:
            config = family.config(raw)
        return family.spec(config, checkpoint)
    except UnsupportedModelError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, StrictDataclassError) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else " ".join(str(error).split())
        raise CheckpointError(model_dir, [f"config.json is invalid: {reason}"]) from error


def _unread_tensors(tensors: Mapping[str, Expression], index: SafetensorsIndex) -> list[str]:
    """Return the checkpoint tensors that nothing reads and that are not known to be harmless."""
    read = {part.name for expression in tensors.values() for part in walk(expression) if isinstance(part, Load)}
    is_tied = "lm_head.weight" not in tensors
    return sorted(
        name
        for name in set(index.tensors) - read - set(HEAD_TENSORS)
        if not _COMPUTED_BUFFER.search(name)
        and not (is_tied and name == "lm_head.weight")
        and not is_zero_bias_of_quantized(name, index)
        and not is_unused(name)
    )


def _bias_problems(unread: Sequence[str], tensors: Mapping[str, Expression]) -> list[str]:
    """Return a sentence for each unread bias of a layer that is read: without it responses would be silently wrong."""
    read = {part.name for expression in tensors.values() for part in walk(expression) if isinstance(part, Load)}
    layers = {name.rpartition(".")[0] for name in read}
    return [
        f"tensor {name} is unknown to this architecture, which has no bias there"
        for name in unread
        if name.endswith(".bias") and name.removesuffix(".bias") in layers
    ]


def _warn_of(unread: Sequence[str], model_dir: Path) -> None:
    if unread:
        shown = ", ".join(unread[:_SHOWN_EXTRA])
        hidden = f" and {len(unread) - _SHOWN_EXTRA} more" if len(unread) > _SHOWN_EXTRA else ""
        text = "%s: %d tensors are not part of the model and are not used: %s%s"
        logger.warning(text, model_dir, len(unread), shown, hidden)


def _dtype_of(index: SafetensorsIndex, scaled: ScaledWeights | None) -> str:
    """Return the type of most weights, scales apart; config.json may name another one."""
    types = [
        WEIGHT_DTYPES[info.dtype]
        for name, info in index.tensors.items()
        if info.dtype in WEIGHT_DTYPES and not is_unused(name) and not (scaled is not None and scaled.is_scale(name))
    ]
    return max(sorted(set(types)), key=types.count) if types else "float32"


def bos_token_of(model_dir: Path, config: dict[str, Any]) -> int | None:
    """Return the token that begins a text; generation_config.json goes before config.json."""
    generation = {}
    if (model_dir / "generation_config.json").is_file():
        generation = read_config(model_dir, "generation_config.json")
    named = (content.get("bos_token_id") for content in (generation, config))
    bos = next((token for token in named if token is not None), None)
    return bos if type(bos) is int else None
