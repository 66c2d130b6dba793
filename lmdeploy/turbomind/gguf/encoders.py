"""Encoders in GGUF files: config.json and modules.json from metadata, and tensor names.

``bert`` is BERT, RoBERTa and their like alike: the converter leaves out the rows of positions that no token has.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmdeploy.errors import UnsupportedModelError
from lmdeploy.turbomind.families.encoders import post_norm_tensors
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.families.nomic_bert import with_bias
from lmdeploy.turbomind.gguf.configs import FULL, SLIDING, Config, gemma3, plain
from lmdeploy.turbomind.gguf.metadata import Metadata
from lmdeploy.turbomind.gguf.mixtures import EXPERTS
from lmdeploy.turbomind.manifest import Constant, Expression
from lmdeploy.turbomind.spec import ModelSpec

_POOLINGS = ("", "mean", "cls", "lasttoken")  # by number; 0: the file's maker does not say


@dataclass(frozen=True)
class PostNormLayout(Layout):
    """Names of an encoder with BERT's layers (`lmdeploy.turbomind.families.encoders`)."""

    def tensors(self, spec: ModelSpec) -> dict[str, Expression]:
        """Return the expression of each engine tensor of a model."""
        return post_norm_tensors(spec, self, "token_embd_norm", "token_types")


def is_encoder(metadata: Metadata) -> bool:
    """Return whether a file is an encoder's."""
    return metadata.get("attention.causal") is False


def has_classifier(metadata: Metadata) -> bool:
    """Return whether two layers follow, as in RoBERTa's classifiers and rerankers: a dense one, and that of labels."""
    return metadata.architecture == "bert" and metadata.has("cls.weight") and metadata.has("cls.output.weight")


def write_modules(metadata: Metadata, target: Path) -> None:
    """Write how vectors are made, as sentence-transformers has it; of length 1, as llama.cpp's server makes them.

    Raises `UnsupportedModelError` if its vectors are pooled in a way that is not known, or become scores in a way that
    is not read.
    """
    if has_classifier(metadata):
        return
    number = metadata.get("pooling_type", 0)
    if metadata.has("cls.weight") or metadata.has("cls.output.weight") or number not in range(len(_POOLINGS)):
        raise UnsupportedModelError(
            "GGUF files of rerankers and classifiers other than RoBERTa's are not read: take the model as safetensors"
        )
    steps = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    listed = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in steps]
    (target / "modules.json").write_text(json.dumps(listed), encoding="utf-8")
    (target / "1_Pooling").mkdir()
    mode = {"pooling_mode": _POOLINGS[number] or "mean"}
    (target / "1_Pooling" / "config.json").write_text(json.dumps(mode), encoding="utf-8")


def _token_types(metadata: Metadata) -> int:
    types = metadata.tensors.get("token_types.weight")
    return types.shape[0] if types else 0


def _encoder(model_type: str, *parts: Config, eps: str = "layer_norm_eps", **fields: Any) -> Config:
    return plain(model_type, *parts, eps=eps, tie_word_embeddings=True, type_vocab_size=_token_types, **fields)


def _labels(metadata: Metadata) -> dict[str, Any]:
    labels = metadata.get("classifier.output_labels", [])
    return {"id2label": {str(number): label for number, label in enumerate(labels)}} if labels else {}


# BERT, RoBERTa, XLM-RoBERTa and DistilBERT.
bert = _encoder("bert", _labels, hidden_act="gelu", is_decoder=False)


def nomic_bert(metadata: Metadata) -> dict[str, Any]:
    """NomicBERT, in the names of its published config; files have no bias of the experts' sum."""
    fields = _encoder("nomic_bert")(metadata)
    return fields | {
        "rotary_emb_base": fields.pop("rope_parameters")["rope_theta"],
        "hidden_act": "silu" if metadata.has("blk.0.ffn_gate.weight") else "gelu",
        "qkv_proj_bias": metadata.has("blk.0.attn_qkv.bias"),
        "mlp_fc1_bias": metadata.has("blk.0.ffn_up.bias"),
        "moe_every_n_layers": metadata.get("moe_every_n_layers", 0),
        "moe_top_k": metadata.get("expert_used_count"),
    }


def nomic_experts(spec: ModelSpec, prefix: str) -> dict[str, Expression]:
    """Return the engine tensors of the experts of a layer of NomicBERT."""
    return with_bias(spec, EXPERTS.tensors(spec, prefix), Constant((spec.hidden_size,), 0.0))


def jina_bert_v2(metadata: Metadata) -> dict[str, Any]:
    """JinaBERT; llama.cpp fixes its slopes and its activation.

    Raises `UnsupportedModelError` for the model of code, which has further norms.
    """
    if metadata.has("blk.0.attn_norm_2.weight") or metadata.has("blk.0.attn_q_norm.weight"):
        raise UnsupportedModelError("JinaBERT with norms of queries and keys (jina-embeddings-v2-base-code)")
    return _encoder("bert")(metadata) | {"feed_forward_type": "geglu"}


eurobert = _encoder("eurobert", eps="rms_norm_eps", hidden_act="silu", attention_bias=False, mlp_bias=False)


def gemma_embedding(metadata: Metadata) -> dict[str, Any]:
    """EmbeddingGemma; its window is counted to both sides together."""
    if metadata.get("dense_2_feat_in"):
        raise UnsupportedModelError("the GGUF file has linear layers after pooling: take the model as safetensors")
    window = metadata.need("attention.sliding_window") // 2 + 1
    return gemma3(metadata) | {"use_bidirectional_attention": True, "sliding_window": window}


def modern_bert(metadata: Metadata) -> dict[str, Any]:
    """ModernBERT; without a pattern every third layer sees all."""
    window, every = metadata.get("attention.sliding_window", 0), metadata.get("attention.sliding_window_pattern", 3)
    layers = range(metadata.layer_count or 0)
    base = metadata.get("rope.freq_base", 10000.0)
    bases = {FULL: base, SLIDING: metadata.get("rope.freq_base_swa", base)}
    return _encoder("modernbert", eps="norm_eps")(metadata) | {
        "norm_bias": metadata.has("output_norm.bias"),
        "attention_bias": metadata.has("blk.0.attn_qkv.bias"),
        "mlp_bias": metadata.has("blk.0.ffn_up.bias"),
        "hidden_activation": metadata.get("hidden_activation", "gelu"),
        "local_attention": window,
        "layer_types": [SLIDING if window and layer % every else FULL for layer in layers],
        "rope_parameters": {kind: {"rope_type": "default", "rope_theta": theta} for kind, theta in bases.items()},
    }
