"""Llama 3.2 Vision: one token, after which the text attends to tiles of the image by cross-attention.

Tiles make one of a few canvases; what is not covered by the image is not looked at. An image's token is embedded by
a row after the text's vocabulary, so that its embedding comes from here, and a reserved token stands for it.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from PIL.Image import Image

from lmdeploy.vl.families.common import Checkpoint, NativeForm, Options, VisionFamily, VisionPart
from lmdeploy.vl.tensors import rows_of_tensor, seeing_tensors

if TYPE_CHECKING:
    import torch

_TOKEN, _PLACEHOLDER = "<|reserved_special_token_0|>", "<|image|>"
_EMBEDDING = "language_model.model.embed_tokens.weight"
_BEHIND_VOCABULARY = 8  # rows of the embedding


def tensors(checkpoint: Checkpoint) -> "Iterator[tuple[str, torch.Tensor]]":
    """Yield the tensors of the vision tower, and an embedding of one token: the image's."""
    import torch

    folder, raw = checkpoint
    yield from seeing_tensors(folder)
    row = rows_of_tensor(folder, _EMBEDDING, [raw["image_token_index"]])
    yield _EMBEDDING, torch.cat([row, row.new_zeros(_BEHIND_VOCABULARY, row.shape[1])])


def expansion(part: VisionPart, size: tuple[int, int], options: Options) -> str:
    """Return the token."""
    return _TOKEN


def features(part: VisionPart, image: Image, options: Options) -> "torch.Tensor":
    """Return the token's row, then those of the tiles that the image covers, one tile after the other."""
    import torch

    model = part.model.model
    given = part.processor(images=image, return_tensors="pt")
    tiles = int(given["num_tiles"][0][0])
    states = model.vision_model(
        pixel_values=given["pixel_values"].to(part.model.dtype),
        aspect_ratio_ids=given["aspect_ratio_ids"],
        aspect_ratio_mask=given["aspect_ratio_mask"],
    ).last_hidden_state[0, 0]
    rows = model.multi_modal_projector(states[:tiles]).flatten(0, 1)
    return torch.cat([part.model.get_input_embeddings().weight[:1], rows])


FAMILY = VisionFamily(
    ("MllamaForConditionalGeneration",),
    _TOKEN,
    expansion,
    features,
    written=_PLACEHOLDER,
    words=(_PLACEHOLDER,),
    native=NativeForm(tensors=tensors),
    placeholder=_PLACEHOLDER,
    has_cross_attention=True,
)
