"""What a GGUF file says of its model alongside the weights, with the names of its architecture filled in."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lmdeploy.turbomind.gguf.header import GgufTensor


@dataclass(frozen=True)
class Metadata:
    """Metadata and tensors of all parts of a file.

    Attributes
    ----------
    values
        By key, such as ``llama.block_count``.
    tensors
        By GGUF's names.
    numbers
        Values of small tensors that belong to the configuration, by name: factors of rotary frequencies.
    """

    values: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]
    numbers: Mapping[str, list[float]]

    @property
    def architecture(self) -> str:
        """Name of the architecture, such as ``llama``; empty where none is named."""
        return str(self.values.get("general.architecture", ""))

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key of the architecture, given without its name."""
        return self.values.get(f"{self.architecture}.{key}", default)

    def need(self, key: str) -> Any:
        """Return the value of a key of the architecture; ``ValueError`` where it is missing."""
        value = self.get(key)
        if value is None:
            raise ValueError(f"its metadata lack {self.architecture}.{key}")
        return value

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
        hidden, heads = self.get("embedding_length"), self.get("attention.head_count")
        given = self.get("attention.key_length")
        if given is None and type(hidden) is int and type(heads) is int and heads > 0:
            return hidden // heads
        return given if type(given) is int else None
