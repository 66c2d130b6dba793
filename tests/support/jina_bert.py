"""A tiny JinaBERT with random weights, as Jina's own code lays it out, and what it computes, in float64.

``transformers`` has no such model without that code.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import save_file
from torch.nn.functional import gelu, layer_norm, linear

EPS = 1e-12


class JinaBert:
    """The model; called as one of ``transformers`` is, with one text at a time."""

    def __init__(self, directory: Path, kind: str, **sizes: int) -> None:
        """Make random weights and write them with their config.json."""
        self.hidden, self.layers = sizes["hidden_size"], sizes["num_hidden_layers"]
        self.heads, self.inner = sizes["num_attention_heads"], sizes["intermediate_size"]
        self.has_head = kind == "ForSequenceClassification"
        shapes = dict(self._shapes(sizes["vocab_size"]))
        self.tensors = {name: torch.randn(shape) * (0.4 if len(shape) > 1 else 0.3) for name, shape in shapes.items()}
        prefix = "bert." if self.has_head else ""
        stored = {(name if name.startswith("classifier") else prefix + name): x for name, x in self.tensors.items()}
        save_file(stored, directory / "model.safetensors")
        said = {
            "architectures": ["JinaBert" + kind],
            "auto_map": {"AutoModel": "modeling_bert.JinaBertModel"},
            "model_type": "bert",
            "feed_forward_type": "geglu",
            "position_embedding_type": "alibi",
            "max_position_embeddings": 512,
            "layer_norm_eps": EPS,
            "type_vocab_size": 2,
            **({"id2label": {"0": "LABEL_0"}} if self.has_head else {}),
        }
        (directory / "config.json").write_text(json.dumps(said | sizes))

    def _shapes(self, vocab: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        hidden, inner = self.hidden, self.inner

        def norm(name: str) -> Iterator[tuple[str, tuple[int, ...]]]:
            yield f"{name}.weight", (hidden,)
            yield f"{name}.bias", (hidden,)

        def layer(name: str, outputs: int, inputs: int) -> Iterator[tuple[str, tuple[int, ...]]]:
            yield f"{name}.weight", (outputs, inputs)
            yield f"{name}.bias", (outputs,)

        yield "embeddings.word_embeddings.weight", (vocab, hidden)
        yield "embeddings.token_type_embeddings.weight", (2, hidden)
        yield from norm("embeddings.LayerNorm")
        for i in range(self.layers):
            own = f"encoder.layer.{i}"
            for name in ("query", "key", "value"):
                yield from layer(f"{own}.attention.self.{name}", hidden, hidden)
            yield from layer(f"{own}.attention.output.dense", hidden, hidden)
            yield from norm(f"{own}.attention.output.LayerNorm")
            yield f"{own}.mlp.gated_layers.weight", (2 * inner, hidden)
            yield from layer(f"{own}.mlp.wo", hidden, inner)
            yield from norm(f"{own}.mlp.layernorm")
        yield from layer("pooler.dense", hidden, hidden)
        if self.has_head:
            yield from layer("classifier", 1, hidden)

    def __call__(self, input_ids: torch.Tensor, token_type_ids: torch.Tensor | None = None) -> Any:
        """Return the hidden states of a text ``[1, tokens]``, or the logits of its class."""
        types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        states = self._normed(
            "embeddings.LayerNorm",
            self._of("embeddings.word_embeddings")[input_ids[0]]
            + self._of("embeddings.token_type_embeddings")[types[0]],
        )
        for i in range(self.layers):
            own = f"encoder.layer.{i}"
            states = self._normed(f"{own}.attention.output.LayerNorm", states + self._attention(own, states))
            gate, up = linear(states, self._of(f"{own}.mlp.gated_layers")).split(self.inner, dim=1)
            states = self._normed(f"{own}.mlp.layernorm", states + self._linear(f"{own}.mlp.wo", gelu(gate) * up))
        if not self.has_head:
            return SimpleNamespace(last_hidden_state=states[None])
        return SimpleNamespace(logits=self._linear("classifier", torch.tanh(self._linear("pooler.dense", states[:1]))))

    def _attention(self, own: str, states: torch.Tensor) -> torch.Tensor:
        count = len(states)
        q, k, v = (
            self._linear(f"{own}.attention.self.{name}", states).view(count, self.heads, -1).transpose(0, 1)
            for name in ("query", "key", "value")
        )
        slopes = 2.0 ** (-8.0 * torch.arange(1, self.heads + 1, dtype=torch.float64) / self.heads)
        apart = (torch.arange(count)[:, None] - torch.arange(count)).abs()
        scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1]) - slopes[:, None, None] * apart
        found = (scores.softmax(-1) @ v).transpose(0, 1).reshape(count, -1)
        return self._linear(f"{own}.attention.output.dense", found)

    def _of(self, name: str, part: str = "weight") -> torch.Tensor:
        return self.tensors[f"{name}.{part}"].double()

    def _linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return linear(x, self._of(name), self._of(name, "bias"))

    def _normed(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return layer_norm(x, (self.hidden,), self._of(name), self._of(name, "bias"), EPS)
