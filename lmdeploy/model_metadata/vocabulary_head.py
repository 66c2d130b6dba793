"""Masked-language-model head of SPLADE models: a weight for each token of the vocabulary.

A text's sparse vector has ``log(1 + relu(logit))`` of each token of the vocabulary, the maximum over the text's tokens
(SPLADE v2: Formal et al., 2021, arXiv 2109.10086) or their sum (SPLADE: arXiv 2107.05720). sentence-transformers says
which in the step ``SpladePooling`` (https://sbert.net/docs/package_reference/sparse_encoder/models.html).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lmdeploy.model_metadata.pooling import DenseLayer, module_steps, unused_in
from lmdeploy.model_metadata.stored_layers import linear_of, tensor_of, vector_of
from lmdeploy.turbomind.families.encoders import prefix_in
from lmdeploy.turbomind.safetensors_index import read_checkpoint

if TYPE_CHECKING:
    from numpy.typing import NDArray

_STEP = "SpladePooling"
_ACTIVATIONS = {"relu": 1, "log1p_relu": 2}  # how often the logarithm is taken
_ROWS_AT_A_TIME = 64  # whose logits are in memory
_EMBEDDINGS = ("embeddings.word_embeddings.weight", "embeddings.tok_embeddings.weight")
# The layer before the last one, the norm after it, and the last one, whose weight may be that of the embeddings.
_HEADS = (
    ("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.decoder"),  # BERT
    ("cls.predictions.transform.dense", "cls.predictions.transform.layer_norm", "cls.predictions.decoder"),  # NomicBERT
    ("vocab_transform", "vocab_layer_norm", "vocab_projector"),  # DistilBERT
    ("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder"),  # RoBERTa and its like, MPNet
    ("lm_head.dense", "lm_head.norm", "lm_head.decoder"),  # GTE
    ("head.dense", "head.norm", "decoder"),  # ModernBERT
)
_TORCH = {"gelu": "GELU", "relu": "ReLU", "silu": "SiLU", "tanh": "Tanh"}


@dataclass(frozen=True)
class VocabularyHead:
    """How a text's sparse vector comes from its hidden states."""

    layers: tuple[DenseLayer, ...]  # from a hidden state to a logit of each token of the vocabulary
    sums: bool = False  # places of a text are added up; otherwise the largest counts
    logarithms: int = 1  # how often ``log(1 + x)`` is taken of what is above 0

    def sparse_vector_of(self, states: NDArray[np.float32]) -> dict[int, float]:
        """Return the weights above 0 by token, ascending, of a text's hidden states ``[tokens, hidden size]``."""
        pooled = np.zeros(len(self.layers[-1].weight), np.float32)
        for begin in range(0, len(states), _ROWS_AT_A_TIME):
            made = states[begin : begin + _ROWS_AT_A_TIME]
            for layer in self.layers:
                made = layer.of_rows(made)
            if self.sums:
                pooled += self._weights(made).sum(axis=0)
            else:
                np.maximum(pooled, made.max(axis=0), out=pooled)
        found = pooled if self.sums else self._weights(pooled)
        tokens = np.flatnonzero(found)
        return dict(zip(tokens.tolist(), found[tokens].tolist(), strict=True))

    def _weights(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        weights = np.maximum(logits, 0)
        for _ in range(self.logarithms):
            weights = np.log1p(weights)
        return weights


def vocabulary_head_of(model_dir: Path) -> VocabularyHead | None:
    """Return the head of a checkpoint; None: it has none, or pools its hidden states into one vector.

    Raises `ValueError` if its layers or its way to pool are not known here.
    """
    raw: Mapping[str, Any] = json.loads((model_dir / "config.json").read_text(encoding="utf-8"))
    steps = dict(module_steps(model_dir))
    if not str((raw.get("architectures") or [""])[0]).endswith("ForMaskedLM") or (steps and _STEP not in steps):
        return None
    layers = _layers(model_dir, raw)
    if layers is None or not steps:
        return layers and VocabularyHead(layers)
    config = json.loads((model_dir / steps[_STEP] / "config.json").read_text(encoding="utf-8"))
    if unused := unused_in(_STEP, f"{steps[_STEP]}/config.json", config):
        raise ValueError(unused)
    pools, activation = config.get("pooling_strategy", "max"), config.get("activation_function", "relu")
    if pools not in ("max", "sum") or activation not in _ACTIVATIONS:
        raise ValueError(f"{_STEP} with pooling_strategy {pools} and activation_function {activation} is not known")
    return VocabularyHead(layers, pools == "sum", _ACTIVATIONS[activation])


def _layers(model_dir: Path, raw: Mapping[str, Any]) -> tuple[DenseLayer, DenseLayer] | None:
    tensors = read_checkpoint(model_dir).tensors
    found = next((head for head in _HEADS if f"{head[0]}.weight" in tensors and _norm(tensors, head[1])), None)
    if found is None:
        return None
    dense, norm, last = found
    weight, bias = linear_of(model_dir, dense)
    size = len(weight)
    name = str(raw.get("hidden_act") or raw.get("activation") or raw.get("classifier_activation") or "gelu")
    if name not in _TORCH:
        raise ValueError(f"its activation {name} before the vocabulary is not supported")
    transform = DenseLayer(
        _TORCH[name],
        weight,
        bias,
        tensor_of(model_dir, [f"{norm}.{_norm(tensors, norm)}"])[0],
        float(raw.get("layer_norm_eps") or raw.get("norm_eps") or 1e-12),
        vector_of(model_dir, (f"{norm}.bias", f"{norm}.beta"), size),
    )
    tied = [prefix_in(read_checkpoint(model_dir), name) + name for name in _EMBEDDINGS]
    rows = tensor_of(model_dir, (f"{last}.weight", *tied))
    biases = (f"{last}.bias", f"{last.rpartition('.')[0]}.bias")
    return transform, DenseLayer(weight=rows, bias=vector_of(model_dir, biases, len(rows)))


def _norm(tensors: Collection[str], name: str) -> str:
    """Return the name of a norm's weight in a checkpoint; empty: there is no such norm."""
    return next((part for part in ("weight", "gamma") if f"{name}.{part}" in tensors), "")
