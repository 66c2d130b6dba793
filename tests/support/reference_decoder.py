"""A decoder that knows nothing but spec.json, manifest.json and the weights: the slow, obvious reading of both.

Its logits equal those of ``transformers`` exactly when spec and manifest describe the model.
"""

from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from torch.nn import functional

from lmdeploy.turbomind.engine_dir import EngineDir
from lmdeploy.turbomind.manifest import Manifest


def load_weights(engine: EngineDir) -> dict[str, Tensor]:
    """Return every engine tensor in float32, by executing the manifest."""
    return execute(Manifest.from_json((engine.path / "manifest.json").read_text(), engine.path))


def execute(manifest: Manifest) -> dict[str, Tensor]:
    """Return every tensor of a manifest in float32."""
    files = [safe_open(str(path), "pt") for path in manifest.files]

    def evaluate(tree: Any) -> Tensor:
        if tree["op"] == "load":
            return files[tree["file"]].get_tensor(tree["name"]).float()
        value = torch.cat([evaluate(argument) for argument in tree["args"]])
        match tree["op"]:
            case "slice":
                return value.narrow(tree["dim"], tree["begin"], tree["end"] - tree["begin"])
            case "permute":
                return value.permute(tree["dims"])
            case "reshape":
                return value.reshape(tree["shape"])
        return value

    return {name: evaluate(tree) for name, tree in manifest.tensors.items()}


def logits(engine: EngineDir, ids: list[int]) -> Tensor:
    """Return the logits ``[tokens, vocab]`` of a token sequence."""
    spec, weights = engine.spec, load_weights(engine)
    x = weights["token_embedding"][ids]
    angles = torch.arange(len(ids)).float()[:, None] * torch.tensor(spec.ropes[0].inv_freq)
    cos, sin = (f(torch.cat([angles, angles], -1)) * spec.ropes[0].attention_scaling for f in (torch.cos, torch.sin))
    causal = torch.ones(len(ids), len(ids)).tril().bool()

    def norm(value: Tensor, name: str) -> Tensor:
        return value * torch.rsqrt(value.square().mean(-1, keepdim=True) + spec.norm.eps) * weights[f"{name}.weight"]

    def linear(value: Tensor, name: str) -> Tensor:
        return functional.linear(value, weights[f"{name}.weight"], weights.get(f"{name}.bias"))

    def rotate(value: Tensor) -> Tensor:  # [heads, tokens, head_dim]
        first, second = value.chunk(2, -1)
        return value * cos + torch.cat([-second, first], -1) * sin

    for i in range(spec.num_layers):
        layer = f"layers.{i}."
        qkv = linear(norm(x, layer + "attention_norm"), layer + "attention.qkv")
        heads = qkv.view(len(ids), -1, spec.head_dim).transpose(0, 1)
        q, k, v = heads.split([spec.num_heads, spec.num_kv_heads, spec.num_kv_heads])
        group = spec.num_heads // spec.num_kv_heads
        q, k, v = rotate(q), rotate(k).repeat_interleave(group, 0), v.repeat_interleave(group, 0)
        scores = (q @ k.transpose(1, 2) * spec.attention.scale).masked_fill(~causal, -torch.inf)
        mixed = (scores.softmax(-1) @ v).transpose(0, 1).reshape(len(ids), -1)
        x = x + linear(mixed, layer + "attention.o")
        gate, up = linear(norm(x, layer + "mlp_norm"), layer + "mlp.gate_up").chunk(2, -1)
        x = x + linear(functional.silu(gate) * up, layer + "mlp.down")
    head = weights["token_embedding"] if spec.tied_embeddings else weights["lm_head.weight"]
    return norm(x, "final_norm") @ head.T
