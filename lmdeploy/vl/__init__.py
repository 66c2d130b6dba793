"""Vision-language models: loading images, and the part of a checkpoint that turns them into embeddings.

What handles images is imported on first use.
"""

from typing import TYPE_CHECKING, Any

from lmdeploy.vl.constants import IMAGE_TOKEN

if TYPE_CHECKING:
    from lmdeploy.vl.utils import encode_image_base64, load_image, load_video
    from lmdeploy.vl.videos import Video

__all__ = ["IMAGE_TOKEN", "Video", "encode_image_base64", "load_image", "load_video"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from lmdeploy.extras import require

    require("vision", f"lmdeploy.vl.{name}")
    from lmdeploy.vl import utils, videos

    return getattr(videos if name == "Video" else utils, name)
