"""Mono-InternVL in float64: `transformers`' InternVL without a tower, and another MLP for rows of images."""

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoImageProcessor, InternVLForConditionalGeneration

from tests.support import tiny_own_layouts as own
from tests.support.reference_layers import instead, split
from tests.support.tiny_vision_models import token_id

_MLP = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}


def make_tiny_mono_internvl(directory: Path) -> Path:
    """Make one with tiles of 28 pixels, from an InternVL on InternLM2."""
    own.make_tiny_internvl_chat(directory, text="internlm2")
    config = json.loads((directory / "config.json").read_text())
    vision = config["vision_config"]
    config["vision_config"] = {name: vision[name] for name in ("hidden_size", "image_size", "patch_size")}
    config["vision_config"]["model_type"] = "intern_vit_patch"
    config["llm_config"]["architectures"] = ["InternLM2VEForCausalLM"]
    (directory / "config.json").write_text(json.dumps(config))
    tensors = load_file(directory / "model.safetensors")
    tensors = {name: values for name, values in tensors.items() if not name.startswith("vision_model.encoder.")}
    random = torch.Generator().manual_seed(7)
    for name in [name for name in tensors if ".feed_forward." in name]:
        other = name.replace(".feed_forward.", ".feed_forward_ve.")
        tensors[other] = torch.randn(tensors[name].shape, generator=random) * 0.3
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    return directory


class MonoInternVlReference:
    """Logits of a checkpoint made by :func:`make_tiny_mono_internvl`."""

    def __init__(self, directory: Path) -> None:
        native = own.native_of(directory)
        self._model = InternVLForConditionalGeneration.from_pretrained(native, dtype=torch.float64)
        self._model.model.vision_tower.encoder.layer = nn.ModuleList()
        self._processor = AutoImageProcessor.from_pretrained(native, backend="pil")
        self._token = token_id(directory, "<IMG_CONTEXT>")
        tensors = load_file(directory / "model.safetensors")

        def change(name: str):  # type: ignore[no-untyped-def]
            layer, part = name.split(".")[-3], _MLP[name.rpartition(".")[2]]
            return instead(tensors[f"language_model.model.layers.{layer}.feed_forward_ve.{part}.weight"])

        self._rows = split(self._model, [f"mlp.{name}" for name in _MLP], change)

    def __call__(self, ids: Sequence[int], images: Sequence[Image.Image]) -> torch.Tensor:
        """Return the logits [tokens, vocab] of a text with images."""
        self._rows.positions = [position for position, token in enumerate(ids) if token == self._token]
        shown = {}
        if images:
            tiles = [self._processor(images=one, crop_to_patches=True, return_tensors="pt") for one in images]
            shown = {"pixel_values": torch.cat([one["pixel_values"] for one in tiles]).double()}
        with torch.inference_mode():
            logits: torch.Tensor = self._model(input_ids=torch.tensor([list(ids)]), **shown).logits[0]
        return logits
