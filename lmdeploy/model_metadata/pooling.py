"""How a model that is made for embeddings makes one of a text, as sentence-transformers writes it down.

``modules.json`` lists the steps: a transformer, ``Pooling`` of its hidden states into one vector, linear layers
(``Dense``), and often ``Normalize``; ``config_sentence_transformers.json`` has the prompts in front of texts
(https://sbert.net/docs/package_reference/sentence_transformer/models.html). The engine pools; what follows is done
here, with a few thousand numbers a text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lmdeploy.stored_rows import stored_rows
from lmdeploy.tokenizer_readers.framed import NO_FRAME, Frame, read_frame
from lmdeploy.turbomind.pickled_weights import read_tensors

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lmdeploy.tokenizer import Tokenizer

_FILE = "pooling.json"
_WEIGHTS = "pooling.npz"
_MODULES = "modules.json"
_PROMPTS = "config_sentence_transformers.json"
_MODE = "pooling_mode_"
_MODES = {
    "cls": "first",
    "cls_token": "first",
    "mean": "mean",
    "mean_tokens": "mean",
    "max": "max",
    "max_tokens": "max",
    "mean_sqrt_len_tokens": "mean_sqrt",
    "weightedmean": "weighted_mean",
    "weightedmean_tokens": "weighted_mean",
    "lasttoken": "last",
}
_ACTIVATIONS = ("Identity", "Tanh", "ReLU", "GELU", "SiLU", "Sigmoid")


@dataclass(frozen=True)
class DenseLayer:
    """A linear layer on a text's vector.

    Attributes
    ----------
    activation
        What follows it, by torch's name.
    weight, bias
        ``[outputs, inputs]`` and ``[outputs]``, float32.
    norm, norm_eps, norm_bias
        The weight ``[outputs]`` of a LayerNorm after it, empty: there is none; and its bias, empty: it has none.
    """

    activation: str = "Identity"
    weight: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 0), np.float32), compare=False)
    bias: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32), compare=False)
    norm: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32), compare=False)
    norm_eps: float = 0.0
    norm_bias: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32), compare=False)

    @property
    def parts(self) -> tuple[NDArray[np.float32], ...]:
        """Its arrays, as files hold them."""
        return self.weight, self.bias, self.norm, self.norm_bias

    def kept(self) -> dict[str, Any]:
        """Return the rest, as files hold it."""
        return {"activation": self.activation, "norm_eps": self.norm_eps}

    def __call__(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return what it makes of vectors ``[texts, inputs]``."""
        return self._finished(linear(self.weight, self.bias, vectors))

    def of_rows(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return what it makes of the rows ``[rows, inputs]`` of one text, whose bits may depend on each other."""
        return self._finished(rows @ self.weight.T + self.bias)

    def _finished(self, made: NDArray[Any]) -> NDArray[np.float32]:
        if self.activation == "Identity" and not self.norm.size:
            return made
        made = activated(self.activation, made.astype(np.float64))
        if self.norm.size:
            centred = made - made.mean(axis=1, keepdims=True)
            made = centred / np.sqrt(centred.var(axis=1, keepdims=True) + self.norm_eps) * self.norm
            if self.norm_bias.size:
                made += self.norm_bias
        finished: NDArray[np.float32] = made.astype(np.float32)
        return finished


def layers_of(kept: Sequence[Mapping[str, Any]], weights: Any) -> tuple[DenseLayer, ...]:
    """Return layers of what `DenseLayer.kept` says, and of the arrays of all of them, ``arr_0``, ``arr_1``, ..."""
    each = [[weights[f"arr_{4 * i + part}"] for part in range(4)] for i in range(len(kept))]
    return tuple(
        DenseLayer(one["activation"], weight, bias, norm, one["norm_eps"], norm_bias)
        for one, (weight, bias, norm, norm_bias) in zip(kept, each, strict=True)
    )


@dataclass(frozen=True)
class Pooling:
    """What becomes of the vector that the engine makes of a text.

    Attributes
    ----------
    normalizes
        It is brought to length 1 in the end.
    refusal
        Why this engine cannot do it; empty: it can.
    prompts
        Texts in front of a text, by what it is for.
    default_prompt
        The name of the one in front of texts whose caller names none; empty: none is.
    dimensions
        To how many numbers vectors may be cut, where the checkpoint says it.
    dense
        Linear layers that the vector goes through.
    frame
        The special tokens around a text.
    """

    normalizes: bool = False
    refusal: str = ""
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str = ""
    dimensions: tuple[int, ...] = ()
    dense: tuple[DenseLayer, ...] = ()
    frame: Frame = NO_FRAME

    def finished(self, vectors: NDArray[np.float32], normalizes: bool | None = None) -> NDArray[np.float32]:
        """Return the vectors that callers get of those that the engine made, ``[texts, hidden size]``.

        With `normalizes` the caller decides whether they are brought to length 1.
        """
        for layer in self.dense:
            vectors = layer(vectors)
        return unit(vectors) if (self.normalizes if normalizes is None else normalizes) else vectors


def linear(weight: NDArray[np.float32], bias: NDArray[np.float32], rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return what a linear layer makes of each row: the same bits whatever other rows there are."""
    if not len(rows):
        return np.zeros((0, len(weight)), np.float32)
    made: NDArray[np.float32] = np.stack([weight @ row for row in rows]) + bias
    return made


def unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return vectors of length 1; one of length 0 stays."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    units: NDArray[np.float32] = vectors / np.where(lengths > 0, lengths, 1)
    return units


def activated(name: str, x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return an activation function of torch of numbers, by its name there.

    Raises
    ------
    ValueError
        There is none of that name here.
    """
    if name not in _ACTIVATIONS:
        raise ValueError(f"activation {name} is not supported; supported: {', '.join(_ACTIVATIONS)}")
    gate: NDArray[np.float64] = 0.5 * (1 + np.tanh(x / 2))
    made: NDArray[np.float64] = x
    if name == "Tanh":
        made = np.tanh(x)
    elif name == "ReLU":
        made = np.maximum(x, 0)
    elif name == "GELU":
        made = x * 0.5 * (1 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2)))
    elif name == "SiLU":
        made = x * gate
    elif name == "Sigmoid":
        made = gate
    return made


def engine_pooling(model_dir: Path, raw: Mapping[str, Any]) -> str:
    """Return how the engine pools the hidden states of an encoder (`lmdeploy.turbomind.spec.EncoderSpec`).

    Encoders without a ``modules.json`` take the mean, as in sentence-transformers; those with a classifier what that
    reads.
    """
    architecture = str((raw.get("architectures") or [""])[0])
    if architecture.endswith("ForSequenceClassification"):
        return "mean" if raw.get("classifier_pooling") == "mean" else "first"
    try:
        modes = _modes(model_dir, module_steps(model_dir))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return "mean"  # pooling_of() says what is wrong
    return _MODES.get(modes[0], "mean") if len(modes) == 1 else "mean"


def pooling_of(model_dir: Path, is_encoder: bool = False) -> Pooling | None:
    """Return how a checkpoint wants embeddings made; None: it is not made for that."""
    if not (model_dir / _MODULES).is_file():
        return Pooling() if is_encoder else None
    try:
        steps = module_steps(model_dir)
        prompts, default = _prompts(model_dir)
        if refusal := _refusal(model_dir, steps, is_encoder):
            return Pooling(refusal=refusal, prompts=prompts, default_prompt=default)
        kinds = [kind for kind, _ in steps]
        dense = tuple(dense_layer(model_dir / path) for kind, path in steps if kind == "Dense")
        sizes = _read(model_dir / "config.json").get("matryoshka_dimensions") or []
        return Pooling("Normalize" in kinds, "", prompts, default, tuple(sorted(map(int, sizes))), dense)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        return Pooling(refusal=f"{_MODULES} and what it names cannot be read ({' '.join(str(error).split())})")


def module_steps(model_dir: Path) -> list[tuple[str, str]]:
    """Return the steps of ``modules.json`` in order, as name and folder; none where there is no such file."""
    if not (model_dir / _MODULES).is_file():
        return []
    return [(str(step["type"]).rpartition(".")[2], str(step["path"])) for step in _read(model_dir / _MODULES)]


def dense_layer(folder: Path) -> DenseLayer:
    """Return the linear layer that a folder of a step ``Dense`` holds, in safetensors or PyTorch's own file."""
    config = _read(folder / "config.json")
    activation = str(config.get("activation_function") or "Identity").rpartition(".")[2]
    activated(activation, np.zeros(1))
    file, pickled = folder / "model.safetensors", folder / "pytorch_model.bin"
    if file.is_file() or not pickled.is_file():
        weight = stored_rows(file, "linear.weight")
        bias = stored_rows(file, "linear.bias")[0] if config.get("bias", True) else None
    else:
        tensors = {name: tensor.float().numpy() for name, tensor in read_tensors(pickled).items()}
        weight, bias = tensors["linear.weight"], tensors["linear.bias"] if config.get("bias", True) else None
    return DenseLayer(activation, weight, np.zeros(len(weight), np.float32) if bias is None else bias)


def write_pooling(
    model_dir: Path, engine_dir: Path, tokenizer: Tokenizer | None = None, is_encoder: bool = False
) -> None:
    """Write what :func:`pooling_of` says of a checkpoint into its engine directory."""
    pooling = pooling_of(model_dir, is_encoder)
    if pooling is None:
        return
    if tokenizer is not None:
        pooling = replace(pooling, frame=tokenizer.frame())
    kept = asdict(pooling) | {"dense": [layer.kept() for layer in pooling.dense]}
    (engine_dir / _FILE).write_text(json.dumps(kept), encoding="utf-8")
    if pooling.dense:
        np.savez(engine_dir / _WEIGHTS, *(part for layer in pooling.dense for part in layer.parts))


def read_pooling(engine_dir: Path) -> Pooling | None:
    """Return what :func:`write_pooling` wrote."""
    if not (engine_dir / _FILE).is_file():
        return None
    kept = _read(engine_dir / _FILE)
    dense: tuple[DenseLayer, ...] = ()
    if kept["dense"]:
        with np.load(engine_dir / _WEIGHTS) as weights:
            dense = layers_of(kept["dense"], weights)
    return Pooling(
        **kept | {"dimensions": tuple(kept["dimensions"]), "dense": dense, "frame": read_frame(kept["frame"])}
    )


def longest_text(model_dir: Path) -> int | None:
    """Return how many tokens of a text sentence-transformers would read of an encoder's; None: as many as it has."""
    for file in (model_dir / "sentence_bert_config.json", model_dir / "sentence_transformers_config.json"):
        if file.is_file():
            length = _read(file).get("max_seq_length")
            return length if type(length) is int and length > 0 else None
    return None


def _read(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def _refusal(model_dir: Path, steps: list[tuple[str, str]], is_encoder: bool) -> str:
    unknown = [kind for kind, _ in steps if kind not in ("Transformer", "Pooling", "Dense", "Normalize")]
    if unknown:
        return f"its step {unknown[0]} is not supported"
    raw = _read(model_dir / "config.json")
    if not is_encoder and (raw.get("is_causal") is False or raw.get("use_bidirectional_attention") is True):
        return "its attention is bidirectional, which is not supported"
    if all(kind != "Pooling" for kind, _ in steps):
        return f"{_MODULES} has no pooling"
    modes, known = _modes(model_dir, steps), list(_MODES) if is_encoder else ["lasttoken"]
    if len(modes) != 1 or modes[0] not in known:
        return f"its pooling is {' and '.join(modes) or 'not said'}; supported: {', '.join(known)}"
    return ""


def _modes(model_dir: Path, steps: list[tuple[str, str]]) -> list[str]:
    folder = next((path for kind, path in steps if kind == "Pooling"), None)
    if folder is None:
        raise ValueError(f"{_MODULES} has no pooling")
    config = _read(model_dir / folder / "config.json")
    if named := config.get("pooling_mode"):
        return [named] if isinstance(named, str) else [str(each) for each in named]
    return [name.removeprefix(_MODE) for name, is_on in config.items() if name.startswith(_MODE) and is_on is True]


def _prompts(model_dir: Path) -> tuple[dict[str, str], str]:
    file = model_dir / _PROMPTS
    config = _read(file) if file.is_file() else {}
    tasks = _read(model_dir / "config.json").get("task_instructions") or {}  # Jina's
    given = {**tasks, **(config.get("prompts") or {})}
    prompts = {str(name): text for name, text in given.items() if isinstance(text, str)}
    default = config.get("default_prompt_name") or ""
    for name in ("query", "document"):  # as PyLate writes it
        if prefix := config.get(f"{name}_prefix"):
            prompts[name] = str(prefix)
    return prompts, default if default in prompts else ""
