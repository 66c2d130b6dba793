"""The weights a manifest describes, by executing it with torch: the slow, obvious reading."""

from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

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
