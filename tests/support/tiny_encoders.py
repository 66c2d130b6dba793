"""Tiny encoders of each family with random weights, as ``transformers`` saves them, and what it computes with them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
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
        config = {
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
        (directory / "config.json").write_text(json.dumps(config | sizes))

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
            prefix = f"encoder.layer.{i}"
            for name in ("query", "key", "value"):
                yield from layer(f"{prefix}.attention.self.{name}", hidden, hidden)
            yield from layer(f"{prefix}.attention.output.dense", hidden, hidden)
            yield from norm(f"{prefix}.attention.output.LayerNorm")
            yield f"{prefix}.mlp.gated_layers.weight", (2 * inner, hidden)
            yield from layer(f"{prefix}.mlp.wo", hidden, inner)
            yield from norm(f"{prefix}.mlp.layernorm")
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
            prefix = f"encoder.layer.{i}"
            states = self._normed(f"{prefix}.attention.output.LayerNorm", states + self._attention(prefix, states))
            gate, up = linear(states, self._of(f"{prefix}.mlp.gated_layers")).split(self.inner, dim=1)
            states = self._normed(f"{prefix}.mlp.layernorm", states + self._linear(f"{prefix}.mlp.wo", gelu(gate) * up))
        if not self.has_head:
            return SimpleNamespace(last_hidden_state=states[None])
        return SimpleNamespace(logits=self._linear("classifier", torch.tanh(self._linear("pooler.dense", states[:1]))))

    def _attention(self, prefix: str, states: torch.Tensor) -> torch.Tensor:
        count = len(states)
        q, k, v = (
            self._linear(f"{prefix}.attention.self.{name}", states).view(count, self.heads, -1).transpose(0, 1)
            for name in ("query", "key", "value")
        )
        slopes = 2.0 ** (-8.0 * torch.arange(1, self.heads + 1, dtype=torch.float64) / self.heads)
        distances = (torch.arange(count)[:, None] - torch.arange(count)).abs()
        scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1]) - slopes[:, None, None] * distances
        found = (scores.softmax(-1) @ v).transpose(0, 1).reshape(count, -1)
        return self._linear(f"{prefix}.attention.output.dense", found)

    def _of(self, name: str, part: str = "weight") -> torch.Tensor:
        return self.tensors[f"{name}.{part}"].double()

    def _linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return linear(x, self._of(name), self._of(name, "bias"))

    def _normed(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return layer_norm(x, (self.hidden,), self._of(name), self._of(name, "bias"), EPS)


SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCAB = 160
SIZES = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 72}
BOUNDARIES = {"bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3, "pad_token_id": 0}
ENCODERS: dict[str, dict[str, Any]] = {
    "Bert": SIZES,
    "Roberta": SIZES | {"pad_token_id": 1, "type_vocab_size": 1},
    "XLMRoberta": SIZES | {"pad_token_id": 1, "type_vocab_size": 1},
    "Camembert": SIZES | {"pad_token_id": 1, "type_vocab_size": 1},
    "MPNet": SIZES | {"pad_token_id": 1},
    "DebertaV2": SIZES
    | {"relative_attention": True, "pos_att_type": "p2c|c2p", "share_att_key": True, "norm_rel_ebd": "layer_norm"}
    | {
        "position_buckets": 8,
        "max_relative_positions": 24,
        "position_biased_input": False,
        "pooler_hidden_act": "gelu",
    },
    "DistilBert": {"dim": 48, "n_layers": 3, "n_heads": 4, "hidden_dim": 72},
    "ModernBert": SIZES | BOUNDARIES | {"local_attention": 12},
    "NomicBert": SIZES,
    "Gte": SIZES,
    "JinaBert": SIZES,
    "JinaEmbeddingsV3": SIZES | {"pad_token_id": 1},
    "EuroBert": SIZES | {"num_key_value_heads": 2, "pad_token_id": 0},
    "Gemma3Text": SIZES
    | {"head_dim": 12, "num_key_value_heads": 2, "query_pre_attn_scalar": 12, "use_bidirectional_attention": True}
    | {"sliding_window": 12, "sliding_window_pattern": 3},
}
"""Configuration of each family; ModernBERT's and EmbeddingGemma's windows are shorter than texts."""
NO_TYPES = {
    "Roberta",
    "XLMRoberta",
    "Camembert",
    "MPNet",
    "DebertaV2",
    "DistilBert",
    "ModernBert",
    "Gte",
    "JinaEmbeddingsV3",
    "EuroBert",
    "Gemma3Text",
}
"""Of these, both texts of a pair have one token type."""


def make_tokenizer(directory: Path, has_types: bool = True) -> None:
    """Write a WordPiece tokenizer of the words ``w0``, ``w1``, ..., with BERT's special tokens."""
    vocab = {token: i for i, token in enumerate([*SPECIAL, *(f"w{i}" for i in range(VOCAB - len(SPECIAL)))])}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.WordPiece()
    second = "$B:1 [SEP]:1" if has_types else "$B [SEP]"
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair=f"[CLS] $A [SEP] {second}", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.enable_truncation(5)  # as published files often have it; nothing may come of it
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    whole = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **dict(zip(names, SPECIAL, strict=True)))
    whole.save_pretrained(directory)


def make_encoder(directory: Path, family: str, kind: str = "Model", *, tokenizer: bool = True, **changes: Any) -> Any:
    """Write an encoder and its tokenizer, and return the ``transformers`` model, in float32.

    ``kind``: what follows the family in the architecture's name; ``tokenizer``: whether a tokenizer is written;
    ``changes``: of the configuration.
    """
    torch.manual_seed(7)
    if tokenizer:
        make_tokenizer(directory, family not in NO_TYPES)
    if family == "JinaBert":
        return JinaBert(directory, kind, **ENCODERS[family], vocab_size=VOCAB)
    fields = ENCODERS[family] | {"vocab_size": VOCAB, "num_labels": 1} | changes
    config = getattr(transformers, f"{family}Config")(**fields)
    model = getattr(transformers, family + kind)(config).eval().float()
    for parameter in model.parameters():  # fresh norms and biases would hide what reads them
        with torch.no_grad():
            parameter.copy_(torch.randn_like(parameter) * (0.4 if parameter.dim() > 1 else 0.3))
    model.save_pretrained(directory)
    return model


class _NomicExperts(torch.nn.Module):
    """An MLP of the code of NomicBERT with experts: the two best of all, weighed as the softmax says, and one bias."""

    def __init__(self, hidden: int, inner: int, count: int) -> None:
        super().__init__()
        self.inner, self.w1, self.w2 = inner, *(torch.nn.Parameter(torch.zeros(count * inner, hidden)) for _ in "12")
        self.router, self.bias = (torch.nn.Parameter(torch.zeros(*shape, hidden)) for shape in ((count,), ()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.bias.repeat(1, x.shape[1], 1)
        weights, chosen = linear(x[0], self.router).softmax(-1).topk(2)
        for row, token in enumerate(x[0]):
            for weight, expert in zip(weights[row], chosen[row], strict=True):
                part = slice(expert * self.inner, (expert + 1) * self.inner)
                found[0, row] += weight * (gelu(self.w1[part] @ token) @ self.w2[part])
        return found


def make_nomic_experts(directory: Path) -> Any:
    """Write a NomicBERT with experts in its second layer as its authors do, and return the model."""
    model = make_encoder(directory, "NomicBert")
    hidden, inner, count = 48, 72, 4
    tensors = load_file(directory / "model.safetensors")
    tensors = {name: tensor for name, tensor in tensors.items() if ".mlp." not in name}
    for i, layer in enumerate(model.layers):
        layer.mlp = torch.nn.Sequential(torch.nn.Linear(hidden, inner), torch.nn.GELU(), torch.nn.Linear(inner, hidden))
        if i == 1:
            layer.mlp = _NomicExperts(hidden, inner, count)
        projections = [getattr(layer.self_attn, f"{part}_proj") for part in "qkvo"]
        for projection in projections:
            projection.bias = torch.nn.Parameter(torch.zeros(hidden))
        for name, parameter in layer.named_parameters():
            if name.startswith("mlp.") or name.endswith("proj.bias"):
                parameter.data = torch.randn_like(parameter) * 0.4
        prefix = f"encoder.layers.{i}."
        qkv = torch.cat([projection.bias.detach() for projection in projections[:3]])
        tensors |= {f"{prefix}attn.Wqkv.bias": qkv, f"{prefix}attn.out_proj.bias": projections[3].bias.detach()}
        names = {"0.weight": "fc1.weight", "0.bias": "fc1.bias", "2.weight": "fc2.weight", "2.bias": "fc2.bias"}
        names |= {
            "w1": "experts.mlp.w1",
            "w2": "experts.mlp.w2",
            "bias": "experts.bias",
            "router": "router.layer.weight",
        }
        tensors |= {f"{prefix}mlp.{names[name]}": value.detach() for name, value in layer.mlp.named_parameters()}
    save_file(tensors, directory / "model.safetensors")
    config = {
        "architectures": ["NomicBertModel"], "model_type": "nomic_bert", "n_embd": hidden, "n_layer": 3, "n_head": 4,
        "n_inner": inner, "n_positions": 2048, "vocab_size": VOCAB, "type_vocab_size": 2, "layer_norm_epsilon": EPS,
        "activation_function": "gelu", "qkv_proj_bias": True, "mlp_fc1_bias": True, "mlp_fc2_bias": True,
        "rotary_emb_base": model.config.rope_parameters["rope_theta"], "rotary_emb_fraction": 1.0, "num_experts": count,
        "moe_top_k": 2, "moe_every_n_layers": 2, "expert_choice_router": False, "num_shared_experts": 0,
    }  # fmt: skip
    (directory / "config.json").write_text(json.dumps(config))
    return model.eval()


def write_modules(directory: Path, mode: str, *further: str) -> None:
    """Write how vectors are made, as sentence-transformers does: a way to pool, then further steps."""
    steps = ["Transformer", "Pooling", *further]
    folders = ["", *(f"{i}_{kind}" for i, kind in enumerate(steps) if i)]
    listed = [
        {"idx": i, "name": str(i), "path": folder, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, folder) in enumerate(zip(steps, folders, strict=True))
    ]
    (directory / "modules.json").write_text(json.dumps(listed))
    (directory / "1_Pooling").mkdir(exist_ok=True)
    (directory / "1_Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{mode}": True}))


def texts_of(lengths: Sequence[int]) -> list[str]:
    """Return texts of these numbers of words."""
    rng = np.random.default_rng(3)
    return [" ".join(f"w{i}" for i in rng.integers(0, VOCAB - len(SPECIAL), length)) for length in lengths]


def hidden_states(model: Any, ids: list[int], types: list[int] | None = None) -> np.ndarray[Any, Any]:
    """Return the result of ``transformers`` for a text: the states ``[tokens, hidden size]``, or a head's logits."""
    given = {} if types is None else {"token_type_ids": torch.tensor([types])}
    with torch.no_grad():
        output = model(input_ids=torch.tensor([ids]), **given)
    found = output.logits if hasattr(output, "logits") else output.last_hidden_state
    return np.asarray(found[0], dtype=np.float64)
