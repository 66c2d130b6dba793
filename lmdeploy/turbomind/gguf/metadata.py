"""Metadata of a GGUF file, with the name of its architecture filled in."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lmdeploy.errors import UnsupportedModelError
from lmdeploy.turbomind.gguf.header import GgufTensor

logger = logging.getLogger(__name__)

# Keys that no computation depends on: other keys, shapes of tensors or the architecture say the same, or they tell how
# the model was trained.
_REDUNDANT = {
    "attention.causal", "attention.key_length", "attention.layer_norm_epsilon", "attention.layer_norm_rms_epsilon",
    "attention.value_length", "attention.value_length_swa", "classifier.output_labels", "expert_feed_forward_length",
    "expert_shared_count", "expert_shared_feed_forward_length", "pooling_type", "rope.dimension_sections",
    "rope.scaling.finetuned", "rope.scaling.original_context_length", "tensor_data_layout", "use_parallel_residual",
    "vocab_size",
}  # fmt: skip
# Of other keys, those that begin so change what a model computes.
_COMPUTED = ("attention.", "expert", "rope.", "ssm.")
_SOFTMAX, _SIGMOID = 1, 2  # expert_gating_func
_WITH_SIGMOID = set(
    """afmoe bailingmoe2 bailingmoe3 cohere2moe deepseek32 dots1 exaone-moe glm-dsa glm4moe hy_v3 hy_v4 kimi-linear
    laguna lfm2moe llama4 mimo2 minimax-m2 minimax-m3 nemotron_h_moe step35""".split()
)


@dataclass(frozen=True)
class Metadata:
    """Metadata and tensors of all parts of a file."""

    values: Mapping[str, Any]  # by key, such as ``llama.block_count``
    tensors: Mapping[str, GgufTensor]  # by GGUF's names
    # Values of small tensors that belong to the configuration, by name: factors of rotary frequencies
    numbers: Mapping[str, list[float]]
    # Keys that were read so far, without the name of the architecture
    used: set[str] = field(default_factory=set, compare=False)

    @property
    def architecture(self) -> str:
        """Name of the architecture, such as ``llama``; empty where none is named."""
        return str(self.values.get("general.architecture", ""))

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key of the architecture, given without its name."""
        self.used.add(key)
        return self.values.get(f"{self.architecture}.{key}", default)

    def need(self, key: str) -> Any:
        """Return the value of a key of the architecture; ``ValueError`` where it is missing."""
        value = self.get(key)
        if value is None:
            raise ValueError(f"its metadata lack {self.architecture}.{key}")
        return value

    def of_all_layers(self, key: str, default: Any = None) -> Any:
        """Return the value of a key that may be a list of one for each layer: a number if all are the same."""
        value = self.get(key, default)
        return value[0] if isinstance(value, list) and len(set(value[: self.layer_count])) == 1 else value

    def has(self, tensor: str) -> bool:
        """Return whether there is a tensor."""
        return tensor in self.tensors

    @property
    def vocab_size(self) -> int | None:
        """Rows of the embedding; None without one."""
        embedding = self.tensors.get("token_embd.weight")
        return embedding.shape[0] if embedding is not None and embedding.shape else None

    @property
    def layer_count(self) -> int | None:
        """Layers of the decoder, without those that only predict further tokens; None where it is not given."""
        blocks = self.get("block_count")
        return blocks - self.get("nextn_predict_layers", 0) if type(blocks) is int else None

    @property
    def head_dim(self) -> int | None:
        """Size of a head where it is given; otherwise it follows from the hidden size."""
        hidden, heads = self.get("embedding_length"), self.of_all_layers("attention.head_count")
        given = self.get("attention.key_length")
        if given is None and type(hidden) is int and type(heads) is int and heads > 0:
            return hidden // heads
        return given if type(given) is int else None

    def reject_unused(self) -> None:
        """Refuse a key of the architecture that changes the computation and was not used; log other unused ones.

        Raises `UnsupportedModelError`, which names the key.
        """
        prefix = f"{self.architecture}."
        for name, value in self.values.items():
            key = name.removeprefix(prefix)
            if key == name or key in self.used or key in _REDUNDANT or self._is_neutral(key, value):
                continue
            if key.startswith(_COMPUTED) or any(part in key for part in ("scale", "softcapping", "swiglu")):
                raise UnsupportedModelError(
                    f"the GGUF key {name} = {str(value)[:60]} changes what the model computes and is not supported for "
                    f"{self.architecture}: take the model as safetensors"
                )
            logger.warning("the GGUF key %s = %.60s is not used", name, value)

    def _is_neutral(self, key: str, value: Any) -> bool:
        """Return whether a value changes nothing: an option that is off, a factor of 1, or what is computed anyway."""
        if key == "rope.dimension_count":
            return bool(value == self.head_dim)
        if key == "rope.dimension_count_swa":
            return bool(value == self.get("attention.key_length_swa", self.get("rope.dimension_count", self.head_dim)))
        if key.startswith("rope.scaling.yarn_"):
            negative = key.endswith("ext_factor") and value < 0  # not set
            return bool(self.get("rope.scaling.type") != "yarn" or negative or (key.endswith("factor") and value == 1))
        if key == "expert_gating_func":
            return bool(value == (_SIGMOID if self.architecture in _WITH_SIGMOID else _SOFTMAX))
        if key == "attention.temperature_length":
            return bool(value == self.get("rope.scaling.original_context_length"))
        if isinstance(value, list):
            return not any(value)
        return not value or (value == 1 and key.endswith(("scale", "factor", "group_count", "group_used_count")))
