"""VisionFamily, and the parts that families share."""

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL.Image import Image, Resampling

from lmdeploy.errors import CheckpointError
from lmdeploy.vl.tensors import seeing_tensors

if TYPE_CHECKING:
    import torch


Options = Mapping[str, Any]
"""How one image is to be processed, as its caller says; a family reads what it knows."""


@dataclass(frozen=True)
class VisionPart:
    """Vision part of a checkpoint, as the functions of a family read it."""

    config: Any  # the whole model's, as ``transformers`` has it
    processor: Any  # the image processor
    model: Any = None  # the model with tower and projector alone; None where only tokens are counted
    # Settings of the video processor, as the checkpoint's files say them
    video: Mapping[str, Any] = field(default_factory=dict)


def image_processor(checkpoint: Path) -> Any:
    """Return the image processor that a checkpoint names: the one on Pillow, as models are trained with.

    By itself ``transformers`` would take one on torchvision where that is installed, whose pixels differ a little.
    """
    from transformers import AutoImageProcessor

    return AutoImageProcessor.from_pretrained(checkpoint, trust_remote_code=False, backend="pil")


def saved_processor(checkpoint: Path) -> dict[str, Any]:
    """Return the settings of a checkpoint's image processor, from where ``transformers`` looks."""
    for name in ("processor_config.json", "preprocessor_config.json"):
        file = checkpoint / name
        settings = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        settings = settings.get("image_processor", {}) if name == "processor_config.json" else settings
        if settings:
            return dict(settings)
    raise CheckpointError(checkpoint, ["preprocessor_config.json is missing"])


def resized(pixels: "torch.Tensor", height: int, width: int, mode: str = "bilinear") -> "torch.Tensor":
    """Return bytes ``[images, 3, height, width]`` in another size, as torchvision; Pillow rounds a few otherwise."""
    import torch

    return torch.nn.functional.interpolate(pixels, (height, width), mode=mode, antialias=True)


def tiles_of(canvas: "torch.Tensor", side: int) -> "torch.Tensor":
    """Return the tiles ``[tiles, 3, side, side]`` of a canvas ``[3, height, width]``, line by line."""
    return canvas.unflatten(2, (-1, side)).unflatten(1, (-1, side)).permute(1, 3, 0, 2, 4).flatten(0, 1)


def normalized(pixels: "torch.Tensor", mean: Sequence[float], std: Sequence[float]) -> "torch.Tensor":
    """Return bytes ``[images, 3, height, width]`` less ``mean``, divided by ``std``, which are of values up to 1."""
    import torch

    return (pixels / 255 - torch.tensor(mean).reshape(3, 1, 1)) / torch.tensor(std).reshape(3, 1, 1)


def rows_of(seen: "torch.Tensor | Sequence[torch.Tensor]") -> "torch.Tensor":
    """Return the rows ``[tokens, hidden]`` of one image or video, of which a tower may return parts."""
    import torch

    parts = [seen] if isinstance(seen, torch.Tensor) else seen
    return torch.cat([part.flatten(0, -2) for part in parts])


def all_rows(seen: Any) -> "torch.Tensor":
    """Return the rows ``[tokens, (1 + deeper layers) hidden]`` of the one image or video that a tower has seen."""
    import torch

    deeper = getattr(seen, "deepstack_features", None) or ()
    return torch.cat([rows_of(one) for one in (seen.pooler_output, *deeper)], dim=-1)


def image_rows(part: VisionPart, images: Any, options: Options, **settings: Any) -> "torch.Tensor":
    """Return the rows of an image, of which ``transformers`` knows all steps.

    ``images``: the image, in lists where the processor wants them. ``settings``: the processor's.
    """
    from inspect import signature

    body = part.model.model  # its method names all arguments, unlike that of the model with an output layer
    found = part.processor(images=images, return_tensors="pt", **settings)
    inputs = {name: found[name] for name in signature(body.get_image_features).parameters if name in found}
    pixels = {name: values.to(part.model.dtype) for name, values in inputs.items() if "pixel_values" in name}
    return all_rows(body.get_image_features(**inputs | pixels))


Checkpoint = tuple[Path, Mapping[str, Any]]
"""Folder and config.json."""


def whole_config(checkpoint: Checkpoint) -> Any:
    """Return the config of a checkpoint that ``transformers`` reads."""
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(checkpoint[0], trust_remote_code=False)


@dataclass(frozen=True)
class NativeForm:
    """``transformers`` form of a checkpoint in its authors' own layout; ``ValueError`` for what is not supported."""

    # The whole model's, with the class that has the tower in ``architectures``: ``module:name``, or one of transformers
    config: Callable[[Checkpoint], Any] = whole_config
    processor: Callable[[Checkpoint], Any] = lambda checkpoint: image_processor(checkpoint[0])
    # Name and values of each tensor of the vision tower
    tensors: Callable[[Checkpoint], "Iterable[tuple[str, torch.Tensor]]"] = lambda checkpoint: seeing_tensors(
        checkpoint[0]
    )


def renamed(*names: tuple[str, str], flat: Sequence[str] = ()) -> Callable[[Checkpoint], Iterator[Any]]:
    """Return the reader of tensors whose names are changed by patterns, one after the other.

    Queries, keys and values that are in one on disk are taken apart. ``flat``: names of vectors with further axes.
    """

    def tensors(checkpoint: Checkpoint) -> Iterator[Any]:
        for name, values in seeing_tensors(checkpoint[0]):
            for pattern, native in names:
                name = re.sub(pattern, native, name)
            if ".qkv." in name:
                for part, rows in zip("qkv", values.chunk(3), strict=True):
                    yield name.replace(".qkv.", f".{part}_proj."), rows
            else:
                yield name, values.flatten() if name in flat else values

    return tensors


Expansion = Callable[[VisionPart, tuple[int, int], Options], str]
Features = Callable[[VisionPart, Image, Options], "torch.Tensor"]
Grid = Callable[[VisionPart, tuple[int, int], Options], tuple[int, int, int]]


@dataclass(frozen=True)
class VideoForm:
    """How the models of a family see videos: as the same attributes of :class:`VisionFamily` say of images.

    An image is the frames below each other, a size that of one of them, and ``times`` among the options has the second
    of each. ``placeholder`` may be several tokens.
    """

    token: str
    expansion: Expansion
    features: Features
    written: str
    placeholder: str = ""
    words: tuple[str, ...] = ()
    grid: Grid = lambda part, size, options: (0, 0, 0)
    # From the part and the options to how many positions the frames of the grid are apart
    frame_step: Callable[[VisionPart, Options], float] = lambda part, options: 1.0


@dataclass(frozen=True)
class VisionFamily:
    """How the models of some architectures see."""

    # Names in config.json's ``architectures``; each is the ``transformers`` class that has the tower, unless there is a
    # ``native`` form
    architectures: tuple[str, ...]
    token: str  # the text of the token that embeddings take the place of
    # From the part, an image's size (width, height) and its options to what stands for it in the prompt: ``token`` as
    # often as it has rows, and whatever the model wants between
    expansion: Expansion
    # From the part, an image and its options to its rows ``[tokens, hidden]``
    features: Features = image_rows
    written: str = ""  # an image in a message, for chat templates that know only texts; empty: ``token`` on a line
    # Such templates get a message's images in front of its texts, not in the order of the message
    goes_first: bool = True
    words: tuple[str, ...] = ()  # other special tokens of an expansion
    seen_words: tuple[str, ...] = ()  # those that have rows as well
    # Only with a ``vision_config`` of this ``model_type``; empty: with every one that no family asks for
    tower: str = ""
    native: NativeForm | None = None  # for checkpoints in their authors' own layout
    processor: Callable[[Path], Any] = image_processor  # of other checkpoints, by their folder
    # An image's rows differ where the prompt has others; the option ``several`` says whether it has
    minds_others: bool = False
    # From the part, an image's index among those of the prompt (from 0) and its options to what is before its expansion
    number: Callable[[VisionPart, int, Options], str] = lambda part, index, options: ""
    placeholder: str = ""  # what a chat template writes for an image, if that is not ``token``; one of ``words``
    # From the part, an image's size (width, height) and its options to the frames, rows and columns that its tokens
    # stand for, where the model's positions have three axes; else zeros
    grid: Grid = lambda part, size, options: (0, 0, 0)
    video: VideoForm | None = None  # how videos are seen; None: not at all
    shares_position: bool = False  # an image's tokens, but the first and the last, are at one position
    # An image is one token, of which the first row is the embedding; the text looks at the others
    has_cross_attention: bool = False
    other_token: str = ""  # in the place of ``token`` where a tokenizer does not have that
    # Images are in front of all that the chat template writes, but the token that begins a text
    leads_prompt: bool = False

    def __post_init__(self) -> None:
        if not self.written:
            object.__setattr__(self, "written", f"{self.token}\n")

    def with_token(self, token: str) -> "VisionFamily":
        """Return the same with another token that embeddings take the place of."""
        changes = {name: getattr(self, name).replace(self.token, token) for name in ("written", "placeholder")}

        def expansion(part: VisionPart, size: tuple[int, int], options: Options) -> str:
            return self.expansion(part, size, options).replace(self.token, token)

        return dataclasses.replace(self, token=token, expansion=expansion, **changes)


# Images in one size whatever their shape, as CLIP's towers were trained to see colours.
@dataclass(frozen=True)
class Squarer:
    """Makes images squares of ``side`` pixels."""

    side: int

    def pixels(self, image: Image) -> "torch.Tensor":
        """Return the normalized pixels ``[3, side, side]`` of an image."""
        import numpy as np
        import torch
        from transformers.image_utils import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD

        resized = image.resize((self.side, self.side), Resampling.BICUBIC)
        values = torch.from_numpy(np.asarray(resized, dtype=np.float32) / 255)
        return ((values - torch.tensor(OPENAI_CLIP_MEAN)) / torch.tensor(OPENAI_CLIP_STD)).permute(2, 0, 1)
