"""Tiny random checkpoints of Llama 3.2 Vision, and what `transformers` says of them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from transformers import MllamaConfig, MllamaForConditionalGeneration, MllamaImageProcessorPil
from transformers.models.mllama.processing_mllama import (
    convert_sparse_cross_attention_mask_to_dense,
    get_cross_attention_token_mask,
)

from tests.support import tiny_vision_models as tiny

RESERVED = "<|reserved_special_token_0|>"
_PLACEHOLDER = "<|image|>"
_VOCABULARY, _MAX_TILES = 320, 4
_RATIOS = [[1, 1], [1, 2], [1, 3], [1, 4], [2, 1], [2, 2], [3, 1], [4, 1]]


def make_tiny_mllama(directory: Path, *, looking: Sequence[int] = (1, 4), layers: int = 6, seed: int = 0) -> Path:
    """Make one whose layers number ``looking`` look at images, of tiles of 5 rows, up to 4."""
    fill = [RESERVED, *(f"<|fill_{i}|>" for i in range(_VOCABULARY - 259))]
    tiny.write_tokenizer(directory, [*fill, _PLACEHOLDER], tiny.TEMPLATE.replace("IMAGE\n", _PLACEHOLDER))
    assert tiny.token_id(directory, _PLACEHOLDER) == _VOCABULARY
    config = MllamaConfig(
        vision_config={
            "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_global_layers": 1,
            "attention_heads": 2, "image_size": tiny.IMAGE_SIDE, "patch_size": tiny.PATCH,
            "max_num_tiles": _MAX_TILES, "supported_aspect_ratios": _RATIOS, "intermediate_layers_indices": [0],
            "vision_output_dim": 32, "initializer_range": 0.3,
        },
        text_config={
            **tiny.TEXT, "num_hidden_layers": layers, "cross_attention_layers": list(looking),
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        },
        image_token_index=_VOCABULARY,
        tie_word_embeddings=False,
    )  # fmt: skip
    side = {"height": tiny.IMAGE_SIDE, "width": tiny.IMAGE_SIDE}
    MllamaImageProcessorPil(size=side, max_image_tiles=_MAX_TILES).save_pretrained(directory)
    made = tiny.save_random(MllamaForConditionalGeneration, config, directory, seed)
    raw = json.loads((made / "config.json").read_text())
    assert raw["image_token_index"] == _VOCABULARY
    return made


class MllamaReference:
    """Logits of a checkpoint at each token.

    `transformers` lets rows in front of the first image look at all images alike, also at those to come, and skips
    the MLP of these rows alone; as Meta wrote it, they skip the attention too (llama-models, `CrossAttention`:
    ``full_text_row_masked_out_mask``). Here they do.
    """

    def __init__(self, directory: Path) -> None:
        self.token = tiny.token_id(directory, RESERVED)
        self.model = MllamaForConditionalGeneration.from_pretrained(directory, dtype=torch.float32).eval()
        self.processor = MllamaImageProcessorPil.from_pretrained(directory)
        self._looking: torch.Tensor | None = None
        for layer in self.model.model.language_model.layers:
            if hasattr(layer, "cross_attn"):
                layer.cross_attn.register_forward_hook(self._skip)

    def _skip(self, module: Any, arguments: Any, output: tuple[torch.Tensor, Any]) -> tuple[torch.Tensor, Any]:
        assert self._looking is not None
        return output[0] * self._looking, output[1]

    def __call__(self, ids: Sequence[int], images: Sequence[Image.Image]) -> torch.Tensor:
        tokens = [_VOCABULARY if token == self.token else token for token in ids]
        with torch.inference_mode():
            if not images:
                return self.model(torch.tensor([tokens])).logits[0]
            given = self.processor(images=[list(images)], return_tensors="pt")
            mask = convert_sparse_cross_attention_mask_to_dense(
                [get_cross_attention_token_mask(tokens, _VOCABULARY)],
                num_tiles=given.pop("num_tiles"),
                max_num_tiles=_MAX_TILES,
                length=len(tokens),
            )
            self._looking = torch.tensor(mask).flatten(2).any(dim=-1)[..., None]
            return self.model(torch.tensor([tokens]), cross_attention_mask=torch.tensor(mask), **given).logits[0]
