"""Where Gemma keeps the further inputs of its layers (per-layer embeddings)."""

from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.manifest import Expression, Load, concat, rows_of
from lmdeploy.turbomind.spec import ModelSpec


def layer_input_tensors(spec: ModelSpec, layout: Layout) -> dict[str, Expression]:
    """Return the engine tensors that make and add the layers' inputs; none where the spec has no inputs."""
    if spec.layer_input is None:
        return {}
    size, hidden = spec.layer_input.size, spec.hidden_size
    width = spec.num_layers * size
    rows = spec.layer_input.vocab_size or spec.vocab_size
    table: Expression = Load("model.embed_tokens_per_layer.weight", (rows, width))
    if rows > spec.vocab_size:
        table = rows_of(table, 0, spec.vocab_size)
    elif rows < spec.vocab_size:
        table = concat(table, *(rows_of(table, 0, 1),) * (spec.vocab_size - rows))
    engine: dict[str, Expression] = {
        "layer_inputs.table": table,
        "layer_inputs.project.weight": Load("model.per_layer_model_projection.weight", (width, hidden)),
        "layer_inputs.norm.weight": Load("model.per_layer_projection_norm.weight", (size,)),
    }
    for i in range(spec.num_layers):
        prefix = layout.layer.format(i)
        engine |= {
            f"layers.{i}.input.gate.weight": Load(prefix + "per_layer_input_gate.weight", (size, hidden)),
            f"layers.{i}.input.project.weight": Load(prefix + "per_layer_projection.weight", (hidden, size)),
            f"layers.{i}.input.norm.weight": Load(prefix + "post_per_layer_input_norm.weight", (hidden,)),
        }
    return engine
