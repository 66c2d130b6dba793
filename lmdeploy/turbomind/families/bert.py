"""BERT, and RoBERTa, XLM-RoBERTa and CamemBERT, whose tables of positions begin after the padding token."""

from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family, activation_of, refuse_unless
from lmdeploy.turbomind.families.encoders import names_of, post_norm_spec, post_norm_tensors, token_types
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.manifest import Expression, Load, rows_of
from lmdeploy.turbomind.spec import MlpSpec, ModelSpec

_ROBERTA = ("Roberta", "XLMRoberta", "Camembert")
LAYOUT = Layout(
    embedding="embeddings.word_embeddings",
    positions="embeddings.position_embeddings",
    layer="encoder.layer.{}.",
    mlp_norm="attention.output.LayerNorm",
    final_norm="output.LayerNorm",
    q="attention.self.query",
    k="attention.self.key",
    v="attention.self.value",
    o="attention.output.dense",
    up="intermediate.dense",
    down="output.dense",
)


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec."""
    kind = getattr(config, "position_embedding_type", None) or "absolute"
    refuse_unless(kind == "absolute", f"position_embedding_type {kind}")
    refuse_unless(not config.is_decoder, "is_decoder")
    unused = _unused_rows(checkpoint.architecture)
    if unused and config.pad_token_id != unused - 1:
        raise ValueError(f"pad_token_id must be {unused - 1}, got {config.pad_token_id}")
    return post_norm_spec(
        config,
        checkpoint,
        mlp=MlpSpec(activation_of(config.hidden_act), is_gated=False, bias=True),
        max_position_embeddings=config.max_position_embeddings - unused,
        learned_positions=config.max_position_embeddings - unused,
    )


def tensors(spec: ModelSpec) -> dict[str, Expression]:
    """Return the expression of each engine tensor."""
    engine = post_norm_tensors(spec, LAYOUT, "embeddings.LayerNorm")
    if unused := _unused_rows(spec.architecture):
        rows = unused + spec.learned_positions
        table = Load(f"{LAYOUT.positions}.weight", (rows, spec.hidden_size))
        engine["position_embedding"] = rows_of(table, unused, rows)
    return engine | token_types(spec, "embeddings.token_type_embeddings")


def _unused_rows(architecture: str) -> int:
    """Return how many rows of the table of positions no token of a text has: RoBERTa's begin after the padding's."""
    return 2 if architecture.startswith(_ROBERTA) else 0


FAMILY = Family((*names_of("Bert", *_ROBERTA), "HF_ColBERT"), spec, tensors)
