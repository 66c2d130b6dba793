"""Classification and reward heads: the head after the hidden state that the engine makes of a text.

Encoders have one or two linear layers after the hidden state of the first token, or of all. Three kinds of decoders
have such a head. ``*ForSequenceClassification`` of ``transformers`` have a matrix ``score``, classifiers, rerankers and
reward models alike. Rerankers that say a word have two rows of their output layer for it, named by the module
``LogitScore`` of sentence-transformers
(https://sbert.net/docs/package_reference/cross_encoder/modules.html). Qwen3-Reranker as first published has no such
file: its words are ``yes`` and ``no`` (Zhang et al., 2025, arXiv 2506.05176, and its model card, which also has the
words around query and document). The softmax over two logits is the sigmoid of their difference, which is one row.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lmdeploy.model_metadata.pooling import DenseLayer, layers_of, linear, read_if_there
from lmdeploy.model_metadata.stored_layers import linear_of, tensor_of
from lmdeploy.tokenizer_readers.framed import NO_FRAME, Frame, read_frame
from lmdeploy.turbomind.families.encoders import prefix_in
from lmdeploy.turbomind.headless import REWARDING
from lmdeploy.turbomind.safetensors_index import read_checkpoint

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lmdeploy.tokenizer import Tokenizer

_FILE = "score_head.json"
_WEIGHTS = "score_head.npz"
_CLASSIFIER = "ForSequenceClassification"
_OUTPUT_LAYERS = ("lm_head.weight", "model.embed_tokens.weight", "embed_tokens.weight")
_JUDGE = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the "
    'answer can only be "yes" or "no".'
)
_TASK = "Given a web search query, retrieve relevant passages that answer the query"


@dataclass(frozen=True)
class ScoreHead:
    """A linear layer from a text's last hidden state to a number for each label."""

    labels: tuple[str, ...] = ("LABEL_0",)  # what the numbers are about; one for a score
    judges: bool = False  # query and text reach the model in Qwen3-Reranker's prompt; otherwise one after the other
    activation: str = "sigmoid"  # from numbers to what is returned: ``sigmoid``, ``softmax`` or ``identity``
    refusal: str = ""  # why it cannot be used; empty: it can
    # ``[labels, hidden size]`` and ``[labels]``, float32
    weight: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 0), np.float32), compare=False)
    bias: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32), compare=False)
    layers: tuple[DenseLayer, ...] = ()  # what the hidden state goes through first
    # The special tokens around and between query and text, and those around a text alone. Of a decoder: none are known
    # here, and each text has its own
    frame: Frame = NO_FRAME
    text_frame: Frame = NO_FRAME

    def numbers(self, states: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the head's numbers ``[texts, labels]`` for hidden states ``[texts, hidden size]``."""
        for layer in self.layers:
            states = layer(states)
        return linear(self.weight, self.bias, states)

    def reported(self, numbers: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return probabilities, where the model's activation makes such, of `numbers`."""
        exact = numbers.astype(np.float64)
        if self.activation == "softmax":
            powers = np.exp(exact - exact.max(axis=1, keepdims=True))
            exact = powers / powers.sum(axis=1, keepdims=True)
        elif self.activation == "sigmoid":
            exact = 0.5 * (1 + np.tanh(exact / 2))
        probabilities: NDArray[np.float32] = exact.astype(np.float32)
        return probabilities


def judging_prompt(query: str, document: str, instruction: str | None = None) -> str:
    """Return the prompt of Qwen3-Reranker's model card, after which it says whether a document answers a query."""
    return (
        f"<|im_start|>system\n{_JUDGE}<|im_end|>\n<|im_start|>user\n<Instruct>: {instruction or _TASK}\n"
        f"<Query>: {query}\n<Document>: {document}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )


def score_head_of(model_dir: Path, model_name: str, tokenizer: Tokenizer, is_encoder: bool = False) -> ScoreHead | None:
    """Return the head of a checkpoint; None: it has none.

    ``model_dir``, ``model_name``: the checkpoint, and what it is called: the first Qwen3-Reranker is known by its name
    alone. ``tokenizer``: of the checkpoint. ``is_encoder``: whether the model reads texts whole.
    """
    try:
        raw: dict[str, Any] = json.loads((model_dir / "config.json").read_text(encoding="utf-8"))
        architecture = str((raw.get("architectures") or [""])[0])
        judges = architecture.startswith("Qwen3For") and _is_judge(model_dir, model_name)
        if architecture == REWARDING:
            weight, bias = linear_of(model_dir, "v_head")
            return ScoreHead(("reward",), activation="identity", weight=weight, bias=bias)
        if architecture.endswith(_CLASSIFIER):
            if not is_encoder:
                return _classifier(model_dir, raw, judges)
            return replace(
                _encoder_head(model_dir, raw), frame=tokenizer.frame(is_pair=True), text_frame=tokenizer.frame()
            )
        words = _words(model_dir) or (_yes_and_no(tokenizer) if judges else None)
        return None if words is None else _speaker(model_dir, raw, words, judges)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        return ScoreHead(refusal=f"its head cannot be read ({' '.join(str(error).split())})")


def write_score_head(
    model_dir: Path, model_name: str, tokenizer: Tokenizer, engine_dir: Path, is_encoder: bool = False
) -> None:
    """Write what :func:`score_head_of` finds into an engine directory."""
    head = score_head_of(model_dir, model_name, tokenizer, is_encoder)
    if head is not None:
        kept = asdict(head)
        kept["layers"] = [layer.kept() for layer in head.layers]
        parts = [part for layer in head.layers for part in layer.parts]
        np.savez(engine_dir / _WEIGHTS, *parts, weight=kept.pop("weight"), bias=kept.pop("bias"))
        (engine_dir / _FILE).write_text(json.dumps(kept), encoding="utf-8")


def read_score_head(engine_dir: Path) -> ScoreHead | None:
    """Return the head that :func:`write_score_head` stored."""
    file = engine_dir / _FILE
    if not file.is_file():
        return None
    kept = json.loads(file.read_text(encoding="utf-8"))
    with np.load(engine_dir / _WEIGHTS) as weights:
        whole = kept | {
            "labels": tuple(kept["labels"]),
            "layers": layers_of(kept["layers"], weights),
            "frame": read_frame(kept["frame"]),
            "text_frame": read_frame(kept["text_frame"]),
        }
        return ScoreHead(**whole, weight=weights["weight"], bias=weights["bias"])


def _classifier(model_dir: Path, raw: Mapping[str, Any], judges: bool) -> ScoreHead:
    weight, bias = linear_of(model_dir, "score")
    labels = _labels(raw, len(weight))
    return ScoreHead(labels, judges, _activation(model_dir, raw, len(labels)), _unsupported_reason(raw), weight, bias)


def _labels(raw: Mapping[str, Any], count: int) -> tuple[str, ...]:
    names = raw.get("id2label") or {}
    return tuple(str(names.get(str(number), f"LABEL_{number}")) for number in range(count))


def _activation(model_dir: Path, raw: Mapping[str, Any], labels: int) -> str:
    """Return the activation after the head: that of sentence-transformers, else that of the kind of problem."""
    configs = (raw.get("sentence_transformers") or {}, read_if_there(model_dir / "config_sentence_transformers.json"))
    named = next((config["activation_fn"] for config in configs if config.get("activation_fn")), None)
    named = named or raw.get("sbert_ce_default_activation_function")
    name = str(named or "").rpartition(".")[2].lower()
    if name in ("sigmoid", "identity", "softmax"):
        return name
    if name:
        raise ValueError(f"its activation {named} is not supported; supported: Sigmoid, Identity, Softmax")
    if raw.get("problem_type") == "regression":
        return "identity"
    return "softmax" if labels > 1 and raw.get("problem_type") != "multi_label_classification" else "sigmoid"


# Of an encoder's head: the layer in front of the last one, and what follows it; then the last one.
_ENCODER_HEADS = (
    ("classifier.dense", "Tanh", "classifier.out_proj"),  # RoBERTa and its like, MPNet
    ("pre_classifier", "ReLU", "classifier"),  # DistilBERT
    ("head.dense", "", "classifier"),  # ModernBERT; its norm follows
    ("pooler.dense", "Tanh", "classifier"),  # BERT, GTE, NomicBERT; DeBERTa, with an activation of its own
    ("cls", "Tanh", "cls.output"),  # RoBERTa in GGUF
)


def _encoder_head(model_dir: Path, raw: Mapping[str, Any]) -> ScoreHead:
    """Return the head of an encoder with a classifier."""
    index = read_checkpoint(model_dir)
    heads = ((prefix_in(index, f"{name}.weight") + name, activation, last) for name, activation, last in _ENCODER_HEADS)
    found = next((head for head in heads if {f"{head[0]}.weight", f"{head[2]}.weight"} <= index.tensors.keys()), None)
    if found is None:
        raise ValueError("its classifier is of no known form")
    name, activation, last = found
    weight, bias = linear_of(model_dir, name)
    activation = _TORCH[raw["pooler_hidden_act"]] if raw.get("pooler_hidden_act") else activation
    norm, eps = np.zeros(0, np.float32), 0.0
    if not activation:
        activation = _TORCH[str(raw.get("classifier_activation", "gelu"))]
        norm, eps = tensor_of(model_dir, (name.removesuffix("dense") + "norm.weight",))[0], float(raw["norm_eps"])
    layer = DenseLayer(activation, weight, bias, norm, eps)
    weight, bias = linear_of(model_dir, last)
    labels = _labels(raw, len(weight))
    return ScoreHead(labels, False, _activation(model_dir, raw, len(labels)), "", weight, bias, (layer,))


_TORCH = {"gelu": "GELU", "relu": "ReLU", "silu": "SiLU", "tanh": "Tanh"}


def _speaker(model_dir: Path, raw: Mapping[str, Any], words: Sequence[int], judges: bool) -> ScoreHead:
    reason = _unsupported_reason(raw)
    if not judges:
        reason = reason or "the words around its queries and documents are not known here"
    rows = tensor_of(model_dir, _OUTPUT_LAYERS, words)
    weight = rows[:1] - rows[1:] if len(words) == 2 else rows
    return ScoreHead(("yes",), judges, "sigmoid", reason, weight, np.zeros(1, np.float32))


def _unsupported_reason(raw: Mapping[str, Any]) -> str:
    sees_all = raw.get("is_causal") is False or raw.get("use_bidirectional_attention") is True
    return "its attention is bidirectional, which is not supported" if sees_all else ""


def _is_judge(model_dir: Path, model_name: str) -> bool:
    template = model_dir / "chat_template.jinja"
    is_written = template.is_file() and "Judge whether the Document" in template.read_text(encoding="utf-8")
    return is_written or "qwen3-reranker" in model_name.lower().replace("_", "-")


def _words(model_dir: Path) -> list[int] | None:
    """Return the token that says yes, and the one that says no if there is one, as sentence-transformers has them."""
    modules = model_dir / "modules.json"
    if not modules.is_file():
        return None
    steps = json.loads(modules.read_text(encoding="utf-8"))
    folder = next((step["path"] for step in steps if str(step["type"]).endswith(".LogitScore")), None)
    if folder is None:
        return None
    named = json.loads((model_dir / folder / "config.json").read_text(encoding="utf-8"))
    return [int(named[key]) for key in ("true_token_id", "false_token_id") if named.get(key) is not None]


def _yes_and_no(tokenizer: Tokenizer) -> list[int]:
    words = [tokenizer.encode(word, add_bos=False) for word in ("yes", "no")]
    if any(len(ids) != 1 for ids in words):
        raise ValueError("yes and no are no tokens of it")
    return [word for (word,) in words]
