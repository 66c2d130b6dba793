"""The model families: what each architecture's config.json and tensor names mean for the engine.

One file a family; an architecture is supported when it stands in :data:`FAMILIES`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lmdeploy.errors import UnsupportedModelError
from lmdeploy.turbomind.families import llama, mixtral, qwen_moe
from lmdeploy.turbomind.families.common import Checkpoint
from lmdeploy.turbomind.manifest import Expression
from lmdeploy.turbomind.spec import ModelSpec


@dataclass(frozen=True)
class Family:
    """What one architecture needs.

    Attributes
    ----------
    spec
        From the ``transformers`` config and what else is known about the checkpoint to the engine's spec. Raises
        ``UnsupportedModelError`` for what the engine cannot do, ``ValueError`` for a config that makes no sense.
    tensors
        The expression of each engine tensor.
    may_ignore
        Whether a checkpoint tensor that no expression reads is harmless.
    """

    spec: Callable[[Any, Checkpoint], ModelSpec]
    tensors: Callable[[ModelSpec], Mapping[str, Expression]]
    may_ignore: Callable[[str, ModelSpec], bool]


FAMILIES: dict[str, Family] = {
    "LlamaForCausalLM": Family(llama.llama_spec, llama.tensors, llama.may_ignore),
    "MistralForCausalLM": Family(llama.mistral_spec, llama.tensors, llama.may_ignore),
    "MixtralForCausalLM": Family(mixtral.spec, mixtral.tensors, llama.may_ignore),
    "Qwen2MoeForCausalLM": Family(qwen_moe.qwen2_spec, qwen_moe.tensors, llama.may_ignore),
    "Qwen2ForCausalLM": Family(llama.qwen2_spec, llama.tensors, llama.may_ignore),
}


def family_of(architectures: object) -> tuple[str, Family]:
    """Return name and family of the first supported one of config.json's ``architectures``.

    Raises
    ------
    UnsupportedModelError
        If none is supported; names them and lists the supported ones.
    """
    names = [name for name in architectures if isinstance(name, str)] if isinstance(architectures, list) else []
    for name in names:
        if name in FAMILIES:
            return name, FAMILIES[name]
    given = ", ".join(names) or "none"
    raise UnsupportedModelError(f"architecture {given} is not supported; supported: {', '.join(sorted(FAMILIES))}")
