"""Family, and the parts of a spec that most config files write the same way."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lmdeploy.errors import UnsupportedModelError
from lmdeploy.turbomind.families.rope import rope_of
from lmdeploy.turbomind.manifest import Expression
from lmdeploy.turbomind.spec import AttentionSpec, MlpSpec, ModelSpec, NormSpec

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
}
SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")


@dataclass(frozen=True)
class Checkpoint:
    """Facts of a checkpoint that config.json alone does not give (or not reliably)."""

    architecture: str
    model_name: str
    dtype: str
    bos_token_id: int | None


@dataclass(frozen=True)
class Family:
    """Architectures of one family."""

    architectures: tuple[str, ...]  # names in config.json's ``architectures``
    # From the config and what else is known about the checkpoint to the engine's spec. Raises ``UnsupportedModelError``
    # for what the engine cannot do, ``ValueError`` for a config that is invalid
    spec: Callable[[Any, Checkpoint], ModelSpec]
    tensors: Callable[[ModelSpec], Mapping[str, Expression]]  # the expression of each engine tensor
    # From the content of config.json to the first argument of ``spec``, for architectures that are published with their
    # own code, which is never run. None: ``transformers`` reads it
    config: Callable[[Mapping[str, Any]], Any] | None = None
    # Whole numbers >= 1 that config.json must have; ``|`` is between the names that one may have
    sizes: tuple[str, ...] = SIZES


def decoder_spec(config: Any, checkpoint: Checkpoint, **fields: Any) -> ModelSpec:
    """Return a spec with what ``fields`` do not give taken from a config with the names most architectures use.

    That is a pre-norm decoder with RMSNorm, a gated MLP without biases and one rotary embedding.
    """
    if "attention" not in fields:
        fields["attention"] = attention_spec(config)
    if "mlp" not in fields:
        fields["mlp"] = MlpSpec(activation_of(config.hidden_act))
    if "norm" not in fields:
        fields["norm"] = NormSpec(eps=config.rms_norm_eps)
    if "ropes" not in fields:
        fields["ropes"] = (rope_of(config),)
    common = {
        "architecture": checkpoint.architecture,
        "model_name": checkpoint.model_name,
        "dtype": checkpoint.dtype,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_layers": config.num_hidden_layers,
        "num_heads": config.num_attention_heads,
        "max_position_embeddings": config.max_position_embeddings,
        "tied_embeddings": bool(config.tie_word_embeddings),
        "bos_token_id": checkpoint.bos_token_id,
        "eos_token_ids": (),  # the tokenizer knows some of them (model_metadata/end_tokens.py)
    }
    if "head_dim" not in fields:
        common["head_dim"] = head_dim_of(config)
    for name, source in {"intermediate_size": "intermediate_size", "num_kv_heads": "num_key_value_heads"}.items():
        if name not in fields:
            common[name] = getattr(config, source)
    return ModelSpec(**(common | fields))


def attention_spec(config: Any, **fields: Any) -> AttentionSpec:
    """Return an attention spec; what ``fields`` do not give is ``head_dim ** -0.5`` and the config's windows."""
    return AttentionSpec(**({"scale": head_dim_of(config) ** -0.5, "windows": windows_of(config)} | fields))


def head_dim_of(config: Any) -> int:
    """Return the size of a head: ``head_dim``, or what the hidden size gives."""
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def windows_of(config: Any) -> tuple[int, ...]:
    """Return the window of each layer, as ``sliding_window`` and ``layer_types`` say; empty where there is none.

    Raises `ValueError` if a layer is to have a window that no token sees.
    """
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    given = getattr(config, "layer_types", None) or []
    if window == 0 and "sliding_attention" in given:
        raise ValueError(f"layer {given.index('sliding_attention')}: sliding_window must be >= 1, got 0")
    kinds = given or ["sliding_attention"] * config.num_hidden_layers
    if not window or "sliding_attention" not in kinds:
        return ()
    return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)


def activation_of(name: str) -> str:
    """Return the engine's name of an activation function; raise `UnsupportedModelError` if the engine lacks it."""
    if name not in ACTIVATIONS:
        raise UnsupportedModelError(f"activation {name!r} is not supported; supported: {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def reject_unless(condition: bool, what: str) -> None:
    """Raise ``UnsupportedModelError`` saying that ``what`` is not supported, unless ``condition`` holds."""
    if not condition:
        raise UnsupportedModelError(f"{what} is not supported")


# Configs of architectures that are published with their own code: read as Llama's, nothing of theirs is run.
_OF_THE_CODE = ("architectures", "auto_map", "model_type", "transformers_version", "torch_dtype", "dtype")


def llama_config(raw: Mapping[str, Any], **changes: Any) -> Any:
    """Return a ``LlamaConfig`` with the fields of config.json, and ``changes`` in their place."""
    from transformers import LlamaConfig

    return LlamaConfig(**({name: value for name, value in raw.items() if name not in _OF_THE_CODE} | changes))
