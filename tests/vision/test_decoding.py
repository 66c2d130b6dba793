"""Whatever a picture's file is like: it becomes upright RGB, or is refused with the reason, at a bounded cost."""

import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from lmdeploy.vl.decoding import Limits, decode
from tests.support.pictures import file_of, picture

LIMITS = Limits(max_bytes=2_000_000, max_pixels=1_000_000)
RED, WHITE = (255, 0, 0), (255, 255, 255)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM", "GIF"])
def test_files_without_loss_come_back_as_they_were(kind: str) -> None:
    image = Image.new("RGB", (12, 7), RED)
    image.paste((0, 0, 255), (0, 0, 6, 7))
    assert np.array_equal(np.asarray(decode(file_of(image, kind), LIMITS)), np.asarray(image))


@pytest.mark.parametrize("kind", ["JPEG", "WEBP"])
def test_files_with_loss_come_back_nearly_as_they_were(kind: str) -> None:
    image = picture(64, 48).resize((16, 12)).resize((64, 48))
    difference = np.asarray(decode(file_of(image, kind, quality=95), LIMITS), int) - np.asarray(image, int)
    assert abs(difference).mean() < 8


def test_a_camera_held_sideways_gives_an_upright_picture() -> None:
    image = Image.new("RGB", (30, 20), RED)
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees
    assert decode(file_of(image, "JPEG", exif=exif), LIMITS).size == (20, 30)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparent_parts_are_white(mode: str) -> None:
    image = Image.new("RGBA", (8, 8), (0, 0, 0, 0))
    image.paste((255, 0, 0, 255), (4, 0, 8, 8))
    content = file_of(image.convert(mode), **({"transparency": 0} if mode == "P" else {}))
    read = decode(content, LIMITS)
    if mode == "P":
        read = decode(file_of(image.quantize(4)), LIMITS)
    assert read.getpixel((0, 0)) == WHITE
    assert read.getpixel((6, 4)) != WHITE


def test_sixteen_bits_are_scaled_to_eight() -> None:
    grey = Image.fromarray(np.full((4, 4), 0x8080, np.uint16))
    assert decode(file_of(grey), LIMITS).getpixel((1, 1)) == (128, 128, 128)


def test_cmyk_is_shown_as_rgb() -> None:
    read = decode(file_of(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG", quality=100), LIMITS)
    assert read.mode == "RGB"
    assert np.allclose(read.getpixel((2, 2)), RED, atol=6)


def test_of_an_animation_the_first_frame_is_seen() -> None:
    frames = [Image.new("RGB", (8, 8), color) for color in (RED, (0, 255, 0), (0, 0, 255))]
    content = file_of(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert decode(content, LIMITS).getpixel((3, 3)) == RED


def bomb(width: int, height: int) -> bytes:
    """Return a PNG that says it is so large, in a few bytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "must be a picture .*got 0 bytes"),
        (b"hello, world", "must be a picture"),
        (file_of(picture(60, 40))[:-200], "broken"),
        (file_of(picture(60, 40), "JPEG")[:300], "broken"),
        (bomb(20_000, 20_000), "at most 1000000 pixels, got far more"),
        (bomb(2_000, 2_000), "at most 1000000 pixels, got 2000 x 2000"),
        (bomb(100, 100), "broken"),
        (file_of(Image.new("RGB", (1, 1))), "at least 2 pixels wide and high"),
        (file_of(Image.new("RGB", (900, 3))), "200 times as long as wide, got 900 x 3"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n", "must be a picture"),
        (b"\x89PNG\r\n\x1a\n" + b"\0" * 40, "must be a picture|broken"),
        (b"x" * 2_000_001, "at most 2000000 bytes, got 2000001"),
    ],
    ids=["empty", "text", "cut PNG", "cut JPEG", "bomb", "small bomb", "too little in it", "one pixel",
         "a line", "EPS", "broken PNG", "long file"],
)  # fmt: skip
def test_what_is_no_picture_is_refused_with_the_reason(content: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        decode(content, LIMITS)
