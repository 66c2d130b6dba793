"""Models that see pictures: loading pictures, and the part of a checkpoint that turns them into embeddings."""

from lmdeploy.vl.constants import IMAGE_TOKEN
from lmdeploy.vl.utils import encode_image_base64, load_image

__all__ = ["IMAGE_TOKEN", "encode_image_base64", "load_image"]
