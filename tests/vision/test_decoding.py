"""Whatever an image's file is like: it becomes upright RGB, or is refused with the reason, at a bounded cost."""

import os
import signal
import struct
import time
import zlib
from collections.abc import Iterator

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from lmdeploy.vl.decoder_process import DecoderProcess
from lmdeploy.vl.decoding import Limits, decode
from lmdeploy.vl.videos import Sampling, from_file
from tests.support.images import file_of, make_image

LIMITS = Limits(max_bytes=2_000_000, max_pixels=1_000_000)
RED, WHITE = (255, 0, 0), (255, 255, 255)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM", "GIF"])
def test_files_without_loss_come_back_as_they_were(kind: str) -> None:
    image = Image.new("RGB", (12, 7), RED)
    image.paste((0, 0, 255), (0, 0, 6, 7))
    assert np.array_equal(np.asarray(decode(file_of(image, kind), LIMITS)), np.asarray(image))


@pytest.mark.parametrize("kind", ["JPEG", "WEBP"])
def test_files_with_loss_come_back_nearly_as_they_were(kind: str) -> None:
    image = make_image(64, 48).resize((16, 12)).resize((64, 48))
    difference = np.asarray(decode(file_of(image, kind, quality=95), LIMITS), int) - np.asarray(image, int)
    assert abs(difference).mean() < 8


def test_a_camera_held_sideways_gives_an_upright_image() -> None:
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


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def bomb(width: int, height: int) -> bytes:
    """Return a PNG that says it is so large, in a few bytes."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("compression", [{"zip": True}, {}])
@pytest.mark.parametrize("is_last", [False, True])
def test_a_long_text_in_a_png_is_left_out(compression: dict[str, bool], is_last: bool) -> None:
    picture, text = make_image(60, 40), PngImagePlugin.PngInfo()
    text.add_text("long", "a" * 2_000_000, **compression)
    text.add_itxt("also long", "a" * 2_000_000, **compression)
    text.add_itxt("XML:com.adobe.xmp", '<x tiff:Orientation="6"/>', zip=True)
    content = file_of(picture, pnginfo=text, icc_profile=bytes(2_000_000))
    if is_last:  # behind the pixels
        begin, end = content.index(b"tEXt" if b"tEXt" in content else b"zTXt") - 4, content.index(b"IDAT") - 4
        content = content[:begin] + content[end:-12] + content[begin:end] + content[-12:]
    assert decode(content, Limits()).tobytes() == picture.rotate(-90, expand=True).tobytes()


def test_many_texts_in_a_png_are_no_obstacle() -> None:
    picture = make_image(60, 40)
    content, text = file_of(picture), chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(1_000_000)))
    assert decode(content[:-12] + 80 * text + content[-12:], Limits()).tobytes() == picture.tobytes()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "must be an image .*got 0 bytes"),
        (b"hello, world", "must be an image"),
        (file_of(make_image(60, 40))[:-200], "broken"),
        (file_of(make_image(60, 40), "JPEG")[:300], "broken"),
        (bomb(20_000, 20_000), "at most 1000000 pixels, got far more"),
        (bomb(2_000, 2_000), "at most 1000000 pixels, got 2000 x 2000"),
        (bomb(100, 100), "broken"),
        (file_of(Image.new("RGB", (1, 1))), "at least 2 pixels wide and high"),
        (file_of(Image.new("RGB", (900, 3))), "200 times as long as wide, got 900 x 3"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n", "must be an image"),
        (b"\x89PNG\r\n\x1a\n" + b"\0" * 40, "must be an image|broken"),
        (b"x" * 2_000_001, "at most 2000000 bytes, got 2000001"),
    ],
    ids=["empty", "text", "cut PNG", "cut JPEG", "bomb", "small bomb", "too little in it", "one pixel",
         "a line", "EPS", "broken PNG", "long file"],
)  # fmt: skip
def test_what_is_no_image_is_refused_with_the_reason(content: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        decode(content, LIMITS)


def scanned(image: Image.Image, more: int) -> bytes:
    """Return a progressive JPEG file whose last scan comes this many times more."""
    content = file_of(image, "JPEG", progressive=True)
    begin, end = content.rindex(b"\xff\xda"), content.rindex(b"\xff\xd9")
    return content[:end] + content[begin:end] * more + content[end:]


@pytest.mark.parametrize(("side", "more"), [(16, 200), (1000, 5000), (7000, 30)])
def test_a_jpeg_of_many_scans_is_refused_at_once(side: int, more: int) -> None:
    content = scanned(Image.new("L", (side, side), 128), more)
    begin = time.thread_time()
    with pytest.raises(ValueError, match=r"must have at most .* scans"):
        decode(content, Limits())
    with pytest.raises(ValueError, match=r"must have at most .* scans"):
        from_file(content, Sampling(), Limits(), 10**9)
    assert time.thread_time() - begin < 5  # 14 s where the scans are decoded


def test_what_looks_like_scans_elsewhere_in_a_jpeg_does_not_count() -> None:
    image = make_image(64, 48)
    expected = np.asarray(decode(scanned(image, 40), LIMITS))
    content = scanned(image, 40)
    scans = content[:2] + b"\xff\xef" + struct.pack(">H", 2 + 400) + b"\xff\xda" * 200 + content[2:]
    for more in (scans, content + b"\xff\xda" * 200):
        assert np.array_equal(np.asarray(decode(more, LIMITS)), expected)


@pytest.fixture
def process() -> Iterator[DecoderProcess]:
    made = DecoderProcess()
    yield made
    made.close()


def pid_of(process: DecoderProcess) -> int:
    running = process._process._process
    assert running is not None
    return running.pid


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF"])
def test_a_process_of_its_own_decodes_the_same(process: DecoderProcess, kind: str) -> None:
    pids = set()
    for size in ((60, 40), (700, 500)):
        content = file_of(make_image(*size), kind)
        assert np.array_equal(np.asarray(process.image(content, LIMITS)), np.asarray(decode(content, LIMITS)))
        for bad in (content[: len(content) // 2], b"hello", bomb(2000, 2000)):
            with pytest.raises(ValueError, match=r".") as here:
                decode(bad, LIMITS)
            with pytest.raises(ValueError, match=r".") as there:
                process.image(bad, LIMITS)
            assert str(there.value) == str(here.value)
        pids.add(pid_of(process))
    assert len(pids) == 1


def test_a_process_of_its_own_decodes_animations(process: DecoderProcess) -> None:
    frames = [make_image(30, 20, seed) for seed in range(5)]
    content = file_of(frames[0], "PNG", save_all=True, append_images=frames[1:], duration=70)
    here, there = (make(content, Sampling(4), LIMITS, 10**6) for make in (from_file, process.video))
    assert there.times == here.times
    assert [frame.tobytes() for frame in there.frames] == [frame.tobytes() for frame in here.frames]


def test_what_takes_too_long_is_refused_and_the_next_image_decoded(process: DecoderProcess) -> None:
    hasty = DecoderProcess(cpu_seconds=0.25)  # a third of what the long one takes here, a hundred times the small one
    small = file_of(Image.new("RGB", (4, 4), RED))
    long = scanned(Image.new("RGB", (5000, 5000)), 30)
    with pytest.raises(ValueError, match=r"decoding the image takes longer than 0\.25 s"):
        hasty.image(long, Limits())
    assert hasty.image(small, LIMITS).getpixel((1, 1)) == RED
    hasty.close()


def test_what_takes_too_much_memory_is_refused_and_the_next_image_decoded() -> None:
    narrow = DecoderProcess(cpu_seconds=60, memory_bytes=500 << 20)
    small = file_of(Image.new("RGB", (4, 4), RED))
    assert narrow.image(small, LIMITS).getpixel((1, 1)) == RED
    with pytest.raises(ValueError, match="memory"):
        narrow.image(file_of(Image.new("RGBA", (7000, 7000))), Limits())
    assert narrow.image(small, LIMITS).getpixel((1, 1)) == RED
    narrow.close()


def test_a_process_that_was_killed_is_started_again(process: DecoderProcess) -> None:
    small = file_of(Image.new("RGB", (4, 4), RED))
    process.image(small, LIMITS)
    killed = pid_of(process)
    os.kill(killed, signal.SIGKILL)
    os.waitid(os.P_PID, killed, os.WEXITED | os.WNOWAIT)
    assert process.image(small, LIMITS).getpixel((1, 1)) == RED
    assert pid_of(process) != killed
