"""DistilBERT: BERT with half as many layers, without token types."""

from types import SimpleNamespace
from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family, activation_of
from lmdeploy.turbomind.families.encoders import names_of, post_norm_spec, post_norm_tensors
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.manifest import Expression
from lmdeploy.turbomind.spec import EncoderSpec, MlpSpec, ModelSpec

LAYOUT = Layout(
    embedding="embeddings.word_embeddings",
    positions="embeddings.position_embeddings",
    layer="transformer.layer.{}.",
    mlp_norm="sa_layer_norm",
    final_norm="output_layer_norm",
    q="attention.q_lin",
    k="attention.k_lin",
    v="attention.v_lin",
    o="attention.out_lin",
    up="ffn.lin1",
    down="ffn.lin2",
)


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec."""
    sizes = {"hidden_size": config.dim, "num_hidden_layers": config.n_layers, "num_attention_heads": config.n_heads}
    own = SimpleNamespace(
        **sizes,
        vocab_size=config.vocab_size,
        max_position_embeddings=config.max_position_embeddings,
        intermediate_size=config.hidden_dim,
        layer_norm_eps=1e-12,
        tie_word_embeddings=True,
    )
    return post_norm_spec(
        own,
        checkpoint,
        mlp=MlpSpec(activation_of(config.activation), is_gated=False, bias=True),
        learned_positions=config.max_position_embeddings,
        encoder=EncoderSpec(),
    )


def tensors(spec: ModelSpec) -> dict[str, Expression]:
    """Return the expression of each engine tensor."""
    return post_norm_tensors(spec, LAYOUT, "embeddings.LayerNorm")


FAMILY = Family(names_of("DistilBert"), spec, tensors, sizes=("vocab_size", "dim", "n_layers", "n_heads", "hidden_dim"))
