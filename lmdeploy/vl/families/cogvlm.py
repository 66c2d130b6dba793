"""CogVLM and CogVLM2: images in one size, in front of all text, between a vector that begins and one that ends them.

All but the last row take the decoder's weights for images (``ImagesSpec``); the patches' are at one position.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from lmdeploy.turbomind.safetensors_index import read_checkpoint
from lmdeploy.vl.families.common import Checkpoint, NativeForm, Options, VisionFamily, VisionPart
from lmdeploy.vl.families.glm_4v_9b import eva_clip, features, model, processor
from lmdeploy.vl.tensors import seeing_tensors

if TYPE_CHECKING:
    import torch

# The tokenizers are Vicuna's and Llama 3's, and have no token for images.
_TOKEN, _OTHER = "<unk>", "<|reserved_special_token_0|>"
_OWN = "model.vision."


def config(checkpoint: Checkpoint) -> Any:
    """Return a ``LlavaConfig`` with the tower's sizes and those of the rows."""
    folder, raw = checkpoint
    shapes = {name: info.shape for name, info in read_checkpoint(folder).tensors.items()}
    projected = shapes[f"{_OWN}linear_proj.gate_proj.weight"][0]
    return eva_clip(raw, projected, merged_size=shapes.get(f"{_OWN}conv.weight", (0,))[0], scaling_factor=1.0)


def tensors(checkpoint: Checkpoint) -> Iterator[tuple[str, "torch.Tensor"]]:
    """Yield the tensors by the names of :class:`lmdeploy.vl.glm_4v_tower.Glm4vTower`."""
    for name, values in seeing_tensors(checkpoint[0]):
        yield name.removeprefix(_OWN).removeprefix("transformer."), values


def expansion(part: VisionPart, size: tuple[int, int], options: Options) -> str:
    """Return the tokens: one for a patch, or for four, and two for the ends."""
    vision = part.config.vision_config
    side = int(vision.image_size // vision.patch_size) // (2 if part.config.merged_size else 1)
    return _TOKEN * (side**2 + 2)


FAMILY = VisionFamily(
    ("CogVLMForCausalLM",),
    _TOKEN,
    expansion,
    features,
    written=_TOKEN,
    native=NativeForm(config, processor, tensors, model),
    is_one_place=True,
    other_token=_OTHER,
    leads_prompt=True,
)
