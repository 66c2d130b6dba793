"""Pooling of an embedding model, from sentence-transformers' files.

``modules.json`` lists the steps: a transformer, ``Pooling`` of its hidden states into one vector, then linear layers
(``Dense``) and ``Normalize`` in any order; ``config_sentence_transformers.json`` has the prompts in front of texts
(https://sbert.net/docs/package_reference/sentence_transformer/models.html). The engine pools; what follows is done
here, with a few thousand numbers a text. A field of these files that is set and not used is refused by name.
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
_TASKS = "adapters"
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
# The file of the step ``Transformer``, first found first, by the names that versions of sentence-transformers gave it.
_TRANSFORMER = [
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet", "transformers")
]
_MAX_LEN = 1 << 30  # a longer model_max_length stands for "not known"
# Fields that are read, or say what is the case anyway, and those with the values for which that holds.
_Fields = dict[str, tuple[object, ...] | None]
_OF_VECTORS: _Fields = dict.fromkeys(
    ("module_input_name", "module_output_name"), ("sentence_embedding", "token_embeddings")
)
_FIELDS: dict[str, _Fields] = {
    "Transformer": {"transformer_task": ("feature-extraction",), "module_output_name": ("token_embeddings",)}
    | dict.fromkeys("max_seq_length do_lower_case model_args config_args modality_config".split()),
    "Pooling": dict.fromkeys("word_embedding_dimension embedding_dimension include_prompt".split()),
    "Dense": dict.fromkeys("in_features out_features bias activation_function".split()) | _OF_VECTORS,
    "Normalize": _OF_VECTORS,
    "SpladePooling": dict.fromkeys("pooling_strategy activation_function word_embedding_dimension chunk_size".split()),
    _PROMPTS: dict.fromkeys(
        "__version__ model_type prompts default_prompt_name similarity_fn_name truncate_dim query_prefix "
        "document_prefix".split()
    ),
}


@dataclass(frozen=True)
class DenseLayer:
    """A linear layer on a text's vector."""

    activation: str = "Identity"  # what follows it, by torch's name
    # ``[outputs, inputs]`` and ``[outputs]``, float32
    weight: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 0), np.float32), compare=False)
    bias: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32), compare=False)
    # The weight ``[outputs]`` of a LayerNorm after it, empty: there is none; and its bias, empty: it has none
    norm: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32), compare=False)
    norm_eps: float = 0.0
    norm_bias: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32), compare=False)
    takes_units: bool = False  # its inputs are brought to length 1 first

    @property
    def parts(self) -> tuple[NDArray[np.float32], ...]:
        """Its arrays, as files hold them."""
        return self.weight, self.bias, self.norm, self.norm_bias

    def kept(self) -> dict[str, Any]:
        """Return the rest, as files hold it."""
        return {"activation": self.activation, "norm_eps": self.norm_eps, "takes_units": self.takes_units}

    def __call__(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the layer's output for vectors ``[texts, inputs]``."""
        return self._finished(linear(self.weight, self.bias, unit(vectors) if self.takes_units else vectors))

    def of_rows(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the layer's output for one text's rows ``[rows, inputs]``, whose bits may depend on each other."""
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
    parts = [[weights[f"arr_{4 * i + part}"] for part in range(4)] for i in range(len(kept))]
    return tuple(
        DenseLayer(one["activation"], weight, bias, norm, one["norm_eps"], norm_bias, one.get("takes_units", False))
        for one, (weight, bias, norm, norm_bias) in zip(kept, parts, strict=True)
    )


@dataclass(frozen=True)
class Pooling:
    """Pooling and postprocessing of a text's vector."""

    normalizes: bool = False  # it is brought to length 1 in the end
    refusal: str = ""  # why this engine cannot do it; empty: it can
    prompts: Mapping[str, str] = field(default_factory=dict)  # texts in front of a text, by what it is for
    default_prompt: str = ""  # the name of the one in front of texts whose caller names none; empty: none is
    dimensions: tuple[int, ...] = ()  # to how many numbers vectors may be cut, where the checkpoint says it
    # To how many numbers vectors are cut, unless the caller names another number; 0: they stay whole
    truncates_to: int = 0
    lowers: bool = False  # texts are lower-cased, prompts included
    # How hidden states are pooled, without those of the prompt's tokens; empty: the engine pools them all
    without_prompt: str = ""
    dense: tuple[DenseLayer, ...] = ()  # linear layers that the vector goes through
    frame: Frame = NO_FRAME  # the special tokens around a text
    default_task: str = ""  # the adapter for texts whose caller names no task; empty: none is used

    def whole(self, prompt: str, text: str) -> str:
        """Return a text as the tokenizer reads it."""
        return (prompt + text).lower() if self.lowers else prompt + text

    def pooled(self, states: NDArray[np.float32], skipped: int) -> NDArray[np.float32]:
        """Return the vector of the hidden states of a text ``[tokens, hidden size]``, without the first `skipped`."""
        kept = states[skipped:].astype(np.float64)
        if not len(kept):
            return np.zeros(states.shape[1], np.float32)
        if self.without_prompt == "max":
            return np.asarray(kept.max(axis=0), np.float32)
        is_weighted = self.without_prompt == "weighted_mean"
        weights = np.arange(skipped + 1, len(states) + 1) if is_weighted else np.ones(len(kept))
        scale = math.sqrt(len(kept)) if self.without_prompt == "mean_sqrt" else 1.0
        made: NDArray[np.float32] = (weights @ kept * (scale / weights.sum())).astype(np.float32)
        return made

    def finished(
        self, vectors: NDArray[np.float32], normalizes: bool | None = None, dimensions: int | None = None
    ) -> NDArray[np.float32]:
        """Return the vectors that callers get of those that the engine made, ``[texts, hidden size]``.

        Raises `ValueError` if they have fewer numbers. ``vectors``: as the engine made them. ``normalizes``: whether
        they are brought to length 1. None: as the checkpoint says, and where the caller cuts them. ``dimensions``: how
        many numbers of each are kept. None: as many as the checkpoint says.
        """
        for layer in self.dense:
            vectors = layer(vectors)
        if dimensions is not None and len(vectors) and dimensions > vectors.shape[1]:
            raise ValueError(f"dimensions must be at most {vectors.shape[1]} with this model, got {dimensions}")
        kept = vectors[:, : dimensions or self.truncates_to or None]
        return unit(kept) if (self.normalizes or dimensions is not None if normalizes is None else normalizes) else kept


def linear(weight: NDArray[np.float32], bias: NDArray[np.float32], rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return a linear layer's output for each row: the same bits in every batch."""
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

    Raises `ValueError` if there is none of that name here.
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
        if reason := _unsupported_reason(model_dir, steps, is_encoder):
            return Pooling(refusal=reason, prompts=prompts, default_prompt=default)
        kinds = [kind for kind, _ in steps]
        dense = tuple(
            replace(dense_layer(model_dir / path), takes_units=kinds[at - 1] == "Normalize")
            for at, (kind, path) in enumerate(steps)
            if kind == "Dense"
        )
        mode = _MODES[_modes(model_dir, steps)[0]]
        leaves_prompt = _pooling_config(model_dir, steps).get("include_prompt") is False and any(prompts.values())
        return Pooling(
            normalizes=kinds[-1] == "Normalize",
            prompts=prompts,
            default_prompt=default,
            dimensions=tuple(sorted(map(int, _read(model_dir / "config.json").get("matryoshka_dimensions") or []))),
            truncates_to=int(read_if_there(model_dir / _PROMPTS).get("truncate_dim") or 0),
            lowers=bool(_transformer_config(model_dir).get("do_lower_case")),
            without_prompt=mode if leaves_prompt and mode not in ("first", "last") else "",
            dense=dense,
            default_task=next(iter(tasks_in_folders(_read(model_dir / "config.json"))), ""),
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        return Pooling(refusal=f"{_MODULES} and what it names cannot be read ({' '.join(str(error).split())})")


def module_steps(model_dir: Path) -> list[tuple[str, str]]:
    """Return the steps of ``modules.json`` in order, as name and folder, without those of training alone.

    None where there is no such file.
    """
    if not (model_dir / _MODULES).is_file():
        return []
    steps = [(str(step["type"]).rpartition(".")[2], str(step["path"])) for step in _read(model_dir / _MODULES)]
    if len(steps) == 1 and tasks_in_folders(_read(model_dir / "config.json")):  # its own code pools
        steps += [("Pooling", _TASKS), ("Normalize", _TASKS)]
    return [step for step in steps if step[0] != "Dropout"]


def tasks_in_folders(raw: Mapping[str, Any]) -> list[str]:
    """Return the tasks of Jina embeddings v5, whose adapters are in folders of these names; empty: of another model."""
    return list(raw.get("task_names") or ()) if raw.get("model_type") == "jina_embeddings_v5" else []


def dense_layer(folder: Path) -> DenseLayer:
    """Return the linear layer that a folder of a step ``Dense`` holds, in safetensors or PyTorch's own file."""
    config = _read(folder / "config.json")
    if unused := unused_in("Dense", f"{folder.name}/config.json", config):
        raise ValueError(unused)
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
    """Return the pooling that :func:`write_pooling` stored."""
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


def max_text_len(model_dir: Path) -> int | None:
    """Return how many tokens of a text sentence-transformers would read of an encoder's; None: as many as it has."""
    lengths = (
        _transformer_config(model_dir).get("max_seq_length"),
        read_if_there(model_dir / "tokenizer_config.json").get("model_max_length"),
    )
    return next((length for length in lengths if type(length) is int and 0 < length < _MAX_LEN), None)


def _read(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def read_if_there(file: Path) -> Any:
    """Return the content of a JSON file; an empty object if there is none."""
    return _read(file) if file.is_file() else {}


def _transformer_config(model_dir: Path) -> Any:
    return next((_read(model_dir / name) for name in _TRANSFORMER if (model_dir / name).is_file()), {})


def _unsupported_reason(model_dir: Path, steps: list[tuple[str, str]], is_encoder: bool) -> str:
    kinds = [kind for kind, _ in steps]
    unknown = [kind for kind in kinds if kind not in ("Transformer", "Pooling", "Dense", "Normalize")]
    if unknown:
        return f"its step {unknown[0]} is not supported"
    raw = _read(model_dir / "config.json")
    if not is_encoder and (raw.get("is_causal") is False or raw.get("use_bidirectional_attention") is True):
        return "its attention is bidirectional, which is not supported"
    if "Pooling" not in kinds:
        return f"{_MODULES} has no pooling"
    if kinds[:2] != ["Transformer", "Pooling"] or {"Transformer", "Pooling"} & set(kinds[2:]):
        return f"its steps are {', '.join(kinds)}; expected Transformer, Pooling, then any of Dense and Normalize"
    modes, known = _modes(model_dir, steps), list(_MODES) if is_encoder else ["lasttoken"]
    if len(modes) != 1 or modes[0] not in known:
        return f"its pooling is {' and '.join(modes) or 'not said'}; supported: {', '.join(known)}"
    return _unused_field(model_dir, steps)


def _unused_field(model_dir: Path, steps: list[tuple[str, str]]) -> str:
    """Return a sentence for a field that is set and not used, in any of a checkpoint's files; empty: there is none."""
    files = [(kind, f"{path}/config.json") for kind, path in steps if kind != "Transformer"]
    files += [(_PROMPTS, _PROMPTS), *(("Transformer", name) for name in _TRANSFORMER)]
    found = (unused_in(kind, file, read_if_there(model_dir / file)) for kind, file in files)
    return next(filter(None, found), "")


def unused_in(kind: str, file: str, config: Mapping[str, Any]) -> str:
    """Return a sentence for a field of a step's file that is set and not used; empty: there is none."""
    used = _FIELDS[kind]
    for name, value in config.items():
        allowed = used.get(name)
        is_used = (name in used and allowed is None) or (kind == "Pooling" and name.startswith("pooling_mode"))
        if not is_used and value not in (None, False, "", [], {}, *(allowed or ())):
            return f"{file}: {name} is {json.dumps(value)}, which is not supported"
    return ""


def _pooling_config(model_dir: Path, steps: list[tuple[str, str]]) -> Any:
    folder = next((path for kind, path in steps if kind == "Pooling"), None)
    if folder is None:
        raise ValueError(f"{_MODULES} has no pooling")
    if folder == _TASKS:
        return {"pooling_mode": "lasttoken"}
    return _read(model_dir / folder / "config.json")


def _modes(model_dir: Path, steps: list[tuple[str, str]]) -> list[str]:
    config = _pooling_config(model_dir, steps)
    if named := config.get("pooling_mode"):
        return [named] if isinstance(named, str) else [str(mode) for mode in named]
    modes = [name.removeprefix(_MODE) for name, is_on in config.items() if name.startswith(_MODE) and is_on is True]
    return modes if modes or f"{_MODE}mean_tokens" in config else ["mean_tokens"]  # sentence-transformers' default


def _prompts(model_dir: Path) -> tuple[dict[str, str], str]:
    config = read_if_there(model_dir / _PROMPTS)
    tasks = _read(model_dir / "config.json").get("task_instructions") or {}  # Jina's
    given = {**tasks, **(config.get("prompts") or {})}
    prompts = {str(name): text for name, text in given.items() if isinstance(text, str)}
    default = config.get("default_prompt_name") or ""
    for name in ("query", "document"):  # as PyLate writes it
        if prefix := config.get(f"{name}_prefix"):
            prompts[name] = str(prefix)
    return prompts, default if default in prompts else ""
