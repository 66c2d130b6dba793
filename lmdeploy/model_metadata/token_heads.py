"""Token-level heads of encoders: sparse weights, multi-vectors, classes.

Late interaction compares the tokens of two texts one by one (ColBERT: Khattab and Zaharia, 2020, arXiv 2004.12832);
lexical weights say how much each token of a text counts, which is a sparse vector over the vocabulary. BGE-M3 has a
linear layer for each (Chen et al., 2024, arXiv 2402.03216), in ``colbert_linear.pt`` and ``sparse_linear.pt``.
ColBERT's own checkpoints have ``linear.weight`` alongside the encoder, PyLate's have ``Dense`` steps without
``Pooling`` (https://lightonai.github.io/pylate). SPLADE weighs every token of the vocabulary, not of the text alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lmdeploy.model_metadata.pooling import DenseLayer, dense_layer, layers_of, module_steps, unit
from lmdeploy.model_metadata.vocabulary_head import VocabularyHead, vocabulary_head_of
from lmdeploy.stored_rows import stored_rows
from lmdeploy.turbomind.pickled_weights import read_tensors
from lmdeploy.turbomind.safetensors_index import read_checkpoint

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lmdeploy.tokenizer import Tokenizer

_FILE = "token_heads.json"
_WEIGHTS = "token_heads.npz"
_VECTORS, _SPARSE = "colbert_linear.pt", "sparse_linear.pt"
_COLBERT = "linear.weight"
NO_SPARSE_LAYERS = "no sparse_linear.pt, and no layers that predict masked tokens"
_UNWEIGHTED = ("cls_token", "eos_token", "pad_token", "unk_token")


@dataclass(frozen=True)
class TokenHeads:
    """Heads over the hidden states of a text's tokens."""

    hidden_size: int  # numbers of a hidden state
    # Linear layers from a hidden state to a token's vector, which is brought to length 1; empty: the hidden states are
    # the vectors, as they are
    vectors: tuple[DenseLayer, ...] = ()
    skipped: int = 0  # tokens at the beginning of a text that have no vector
    weights: tuple[DenseLayer, ...] = ()  # the linear layer from a hidden state to a token's weight, at most one
    unweighted: frozenset[int] = field(default_factory=frozenset)  # tokens of the vocabulary that never have a weight
    # Linear layer that weighs every token of the vocabulary, in place of `weights`; None: nothing does
    vocabulary: VocabularyHead | None = None
    refusal: str = ""  # why the layers cannot be used; empty: they can

    @property
    def makes_sparse_vectors(self) -> bool:
        """Whether a text's sparse vector can be made."""
        return bool(self.weights) or self.vocabulary is not None

    @property
    def size(self) -> int:
        """Numbers of a token's vector."""
        return len(self.vectors[-1].weight) if self.vectors else self.hidden_size

    def vectors_of(self, states: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the vectors ``[tokens, size]`` of a text's hidden states ``[tokens, hidden size]``."""
        kept = states[self.skipped :]
        if not self.vectors:
            return kept
        for layer in self.vectors:
            kept = layer.of_rows(kept)
        return unit(kept)

    def weights_of(self, states: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the weight of each token ``[tokens]``, at least 0."""
        return np.maximum(self.weights[0].of_rows(states)[:, 0], 0)

    def sparse_vector_of(self, ids: Sequence[int], states: NDArray[np.float32]) -> dict[int, float]:
        """Return the weights above 0 by token of the vocabulary, ascending: of a token's places the largest."""
        if self.vocabulary is not None:
            return self.vocabulary.sparse_vector_of(states)
        found: dict[int, float] = {}
        for token, weight in zip(ids, self.weights_of(states).tolist(), strict=True):
            if weight > 0 and token not in self.unweighted:
                found[token] = max(weight, found.get(token, 0.0))
        return dict(sorted(found.items()))


def token_heads_of(model_dir: Path, tokenizer: Tokenizer, hidden_size: int) -> TokenHeads:
    """Return the token-level heads of an encoder's checkpoint."""
    try:
        sparse = (_pickled_layer(model_dir / _SPARSE),) if (model_dir / _SPARSE).is_file() else ()
        vectors, skipped = _vectors(model_dir)
        roles = tokenizer.special_tokens
        ids = tokenizer.ids_of([roles[role] for role in _UNWEIGHTED if role in roles]) if sparse else []
        unweighted = frozenset(i for i in ids if i is not None)
        heads = TokenHeads(hidden_size, vectors, skipped, sparse, unweighted, vocabulary_head_of(model_dir))
        _check_widths(heads)
        return heads
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        return TokenHeads(hidden_size, refusal=f"its layers for tokens cannot be read ({' '.join(str(error).split())})")


def write_token_heads(model_dir: Path, engine_dir: Path, tokenizer: Tokenizer, hidden_size: int) -> None:
    """Write what :func:`token_heads_of` finds into an engine directory."""
    heads = token_heads_of(model_dir, tokenizer, hidden_size)
    expanding = heads.vocabulary
    layers = (*heads.vectors, *heads.weights, *(expanding.layers if expanding else ()))
    kept: dict[str, Any] = {
        "hidden_size": heads.hidden_size,
        "skipped": heads.skipped,
        "unweighted": sorted(heads.unweighted),
        "refusal": heads.refusal,
        "vectors": len(heads.vectors),
        "weights": len(heads.weights),
        "vocabulary": {"sums": expanding.sums, "logarithms": expanding.logarithms} if expanding else None,
        "layers": [layer.kept() for layer in layers],
    }
    (engine_dir / _FILE).write_text(json.dumps(kept), encoding="utf-8")
    if layers:
        np.savez(engine_dir / _WEIGHTS, *(part for layer in layers for part in layer.parts))


def read_token_heads(engine_dir: Path) -> TokenHeads | None:
    """Return the heads that :func:`write_token_heads` stored; None: the model is no encoder."""
    if not (engine_dir / _FILE).is_file():
        return None
    kept: Mapping[str, Any] = json.loads((engine_dir / _FILE).read_text(encoding="utf-8"))
    layers: tuple[DenseLayer, ...] = ()
    if kept["layers"]:
        with np.load(engine_dir / _WEIGHTS) as weights:
            layers = layers_of(kept["layers"], weights)
    vectors, others = layers[: kept["vectors"]], layers[kept["vectors"] :]
    weights, others = others[: kept["weights"]], others[kept["weights"] :]
    return TokenHeads(
        kept["hidden_size"],
        vectors,
        kept["skipped"],
        weights,
        frozenset(kept["unweighted"]),
        VocabularyHead(others, **kept["vocabulary"]) if others else None,
        kept["refusal"],
    )


def _vectors(model_dir: Path) -> tuple[tuple[DenseLayer, ...], int]:
    """Return the layers of token vectors, and how many tokens are skipped."""
    if (model_dir / _VECTORS).is_file():
        return (_pickled_layer(model_dir / _VECTORS),), 1
    steps = module_steps(model_dir)
    if any(kind == "Dense" for kind, _ in steps) and all(kind != "Pooling" for kind, _ in steps):
        return tuple(dense_layer(model_dir / path) for kind, path in steps if kind == "Dense"), 0
    index = read_checkpoint(model_dir)
    if not steps and _COLBERT in index.tensors:
        weight = stored_rows(index.files[index.tensors[_COLBERT].file], _COLBERT)
        return (DenseLayer(weight=weight, bias=np.zeros(len(weight), np.float32)),), 0
    return (), 0


def _pickled_layer(file: Path) -> DenseLayer:
    tensors = read_tensors(file)
    weight, bias = (tensors[name].float().numpy() for name in ("weight", "bias"))
    return DenseLayer(weight=weight, bias=bias)


def _check_widths(heads: TokenHeads) -> None:
    for layers in (heads.vectors, heads.weights, heads.vocabulary.layers if heads.vocabulary else ()):
        width = heads.hidden_size
        for layer in layers:
            if layer.weight.ndim != 2 or layer.weight.shape[1] != width:
                raise ValueError(f"a linear layer must have {width} inputs, got {layer.weight.shape}")
            width = len(layer.weight)
    if heads.weights and len(heads.weights[0].weight) != 1:
        raise ValueError(f"{_SPARSE} must have one output, got {len(heads.weights[0].weight)}")
