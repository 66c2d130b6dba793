"""CogVLM in float64: GLM-4V's tower in front of `transformers`' Llama, with other weights for rows of images."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from tests.support import published
from tests.support import tiny_vision_models as tiny
from tests.support.glm_4v_reference import VISION, Glm4vReference, seeing_shapes
from tests.support.reference_layers import ReferenceLayers, instead, split, tensors_below

_PREFIX = "model.vision."
_QKV, _O = "query_key_value", "dense"
_MLP = ("gate_proj", "up_proj", "down_proj")
_QKV_PARTS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")


def make_tiny_cogvlm(directory: Path, *, second: bool = True) -> Path:
    """Make a CogVLM2, whose keys are shared by heads and whose patches are merged, or a CogVLM."""
    tiny.write_tokenizer(directory, ["<unk>"], tiny.TEXT_TEMPLATE)
    sizes = tiny.TEXT | ({} if second else {"num_key_value_heads": tiny.TEXT["num_attention_heads"]})
    rope = {"rope_type": "default", "rope_theta": 500000.0 if second else 10000.0}
    config = LlamaConfig(**sizes, rope_parameters=rope)
    tiny.save_random(LlamaForCausalLM, config, directory.with_name("text"), 0)
    tiny.save_random(LlamaForCausalLM, config, directory, 0)
    published.cogvlm(directory)
    tensors = load_file(directory / "model.safetensors")
    random = torch.Generator().manual_seed(3)
    for name in [name for name in tensors if "language" in name]:
        other = name.replace("language", "vision")
        tensors[other] = torch.randn(tensors[name].shape, generator=random) * 0.3
        if second and _QKV in name:
            bias = torch.randn(tensors[name].shape[0], generator=random) * 0.3
            tensors[other.replace("weight", "bias")] = bias
    for name, shape in seeing_shapes(VISION["hidden_size"]).items():
        mean = 1.0 if "norm" in name and name.endswith("weight") else 0.0
        if second or not name.startswith("conv."):
            tensors[_PREFIX + name] = mean + torch.randn(shape, generator=random) * 0.3
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    raw = json.loads((directory / "config.json").read_text()) | {"vision_config": VISION}
    raw |= {"num_multi_query_heads": tiny.TEXT["num_key_value_heads"]} if second else {}
    (directory / "config.json").write_text(json.dumps(raw))
    return directory


class CogVlmReference(Glm4vReference):
    """Logits of a checkpoint at each token."""

    def __init__(self, directory: Path) -> None:
        ReferenceLayers.__init__(self, tensors_below(directory, _PREFIX))
        self._whole = load_file(directory / "model.safetensors")
        self.token = tiny.token_id(directory, "<unk>")
        self.text = LlamaForCausalLM.from_pretrained(directory.with_name("text"), dtype=torch.float64)
        names = [*_QKV_PARTS, "self_attn.o_proj", *(f"mlp.{part}" for part in _MLP)]
        self._images = split(self.text, names, self._change)

    def __call__(self, ids: Sequence[int], images: Sequence[Image.Image]) -> Tensor:
        # As the authors' mask: a token of an image, but the one that another kind follows.
        count = sum(self.token == token for token in ids) // max(1, len(images))
        positions = [position for position, token in enumerate(ids) if token == self.token]
        self._images.positions = [position for number, position in enumerate(positions) if (number + 1) % count]
        return super().__call__(ids, images)

    def rows(self, image: Image.Image) -> Tensor:
        """Return the rows of an image."""
        grid = self.patches(image)
        seen = self.merged(grid) if "conv.weight" in self._tensors else grid.flatten(0, 1)
        return torch.cat([self["boi"][0], self.projected(seen), self["eoi"][0]])

    def _change(self, name: str) -> Callable[[Tensor, Tensor], Tensor]:
        _, _, layer, part = name.split(".", 3)
        at = f"model.layers.{layer}."
        if part.startswith("mlp."):
            return instead(self._whole[f"{at}mlp.vision_mlp.{part.removeprefix('mlp.')}.weight"])
        if part == "self_attn.o_proj":
            return instead(self._whole[f"{at}self_attn.vision_expert_{_O}.weight"])
        config = self.text.config
        size = config.hidden_size // config.num_attention_heads
        counts = (config.num_attention_heads * size, *(2 * [config.num_key_value_heads * size]))
        which = _QKV_PARTS.index(part)
        rows = slice(sum(counts[:which]), sum(counts[: which + 1]))
        whole = f"{at}self_attn.vision_expert_{_QKV}"
        bias = self._whole.get(f"{whole}.bias")
        return instead(self._whole[f"{whole}.weight"][rows], None if bias is None else bias[rows])
