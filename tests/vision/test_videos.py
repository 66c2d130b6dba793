"""Videos: which frames are looked at, when they are, where they are in a prompt, and what is refused."""

import functools
import io
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers.models.glm4v.processing_glm4v import Glm4vProcessor
from transformers.models.glm46v.processing_glm46v import Glm46VProcessor
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
from transformers.models.smolvlm import processing_smolvlm
from transformers.video_utils import load_video as load_their_video

from lmdeploy import extras
from lmdeploy.prompts import PromptPreparer
from lmdeploy.templates.jinja import JinjaChatTemplate
from lmdeploy.tokenizer import Tokenizer
from lmdeploy.vl import Video, containers, load_video
from lmdeploy.vl.decoder_process import DecoderProcess
from lmdeploy.vl.families import idefics3
from lmdeploy.vl.prompts import image_writer
from lmdeploy.vl.sources import ANYTHING, DATA_ONLY, SourceRules, load_frames
from lmdeploy.vl.videos import Sampling
from tests.support import tiny_vision_models as tiny
from tests.support.images import data_url, file_of, make_image

FRAMES = [make_image(56, 28, seed) for seed in range(6)]
LISTED = JinjaChatTemplate(
    "{% for m in messages %}{% for c in m.content %}{% if c.type == 'image' %}<|image_pad|>"
    "{% elif c.type == 'video' %}<|vision_start|><|video_pad|><|vision_end|>{% else %}{{ c.text }}{% endif %}"
    "{% endfor %}{% endfor %}"
)


def animated(kind: str, frames: list[Image.Image], milliseconds: int = 500, **options: Any) -> bytes:
    file = io.BytesIO()
    frames[0].save(file, kind, save_all=True, append_images=frames[1:], duration=milliseconds, **options)
    return file.getvalue()


def part(url: str, **options: Any) -> dict[str, Any]:
    return {"type": "video_url", "video_url": {"url": url, **options}}


def messages_of(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [*parts, {"type": "text", "text": "x"}]}]


def preparer(directory: Path, template: Any = LISTED) -> PromptPreparer:
    tokenizer = Tokenizer(str(directory))
    return PromptPreparer(tokenizer, template, images=image_writer(directory, tokenizer, template, DATA_ONLY))


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make_tiny_qwen_vl(tmp_path_factory.mktemp("qwen") / "model")


@pytest.mark.parametrize(("kind", "options"), [("WEBP", {"lossless": True}), ("PNG", {}), ("GIF", {})])
def test_frames_of_an_animated_image_come_with_their_times(tmp_path: Path, kind: str, options: Any) -> None:
    file = tmp_path / "clip"
    file.write_bytes(animated(kind, FRAMES, **options))
    video = load_video(str(file), num_frames=3)
    assert video.times == (0.0, 1.0, 2.5)
    if kind != "GIF":  # which has few colours
        assert all(np.array_equal(*pair) for pair in zip(video.frames, (FRAMES[0], FRAMES[2], FRAMES[5]), strict=True))
    assert load_video(str(file)).times == (0.0, 0.5, 1.0, 1.5, 2.0, 2.5)


def test_frames_come_one_by_one(tmp_path: Path) -> None:
    listed = load_video([*FRAMES[:2]], fps=4)
    assert listed.times == (0.0, 0.25)
    jpegs = ",".join(data_url(file_of(frame, "JPEG")).partition(",")[2] for frame in FRAMES)
    video = load_frames(f"data:video/jpeg;base64,{jpegs}", Sampling(num_frames=2, fps=2), DATA_ONLY)
    assert video.times == (0.0, 2.5)
    assert video.frames[0].size == (56, 28)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (data_url(b"\0\0\0\x18ftypmp42" + bytes(40), "video/mp4"), "broken MP4 or QuickTime file"),
        (data_url(b"\x1a\x45\xdf\xa3" + bytes(40), "video/webm"), "broken WebM or Matroska file"),
        (data_url(b"RIFF\0\0\0\0AVI LIST" + bytes(40), "video/x-msvideo"), "broken AVI file"),
        (data_url(b"hello", "video/mp4"), "must be an animated image"),
        (data_url(animated("GIF", FRAMES)[:-300], "image/gif"), "broken|at least"),
        ("data:text/plain;base64,aGk=", "a data URL must begin with"),
        ("http://127.0.0.1/x.gif", "not among the allowed hosts"),
        ("/etc/passwd", "a file in the folder of --allowed-local-media-path"),
        ("data:video/jpeg;base64,", "must be an image"),
        ([], "must have frames"),
        ([FRAMES[0], make_image(28, 28)], r"must have one size, got \(56, 28\) and \(28, 28\)"),
        (7, "must be a video, frames, a URL"),
    ],
)
def test_what_is_no_video_is_refused_with_the_reason(source: object, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        load_frames(source, Sampling(), DATA_ONLY)


def contained(kind: str, codec: str, count: int = 40, size: tuple[int, int] = (64, 48)) -> bytes:
    """Return a file whose frame ``i`` is of brightness ``6 * i``, ten a second, a key frame every eight."""
    av = pytest.importorskip("av", reason="the extra video is not installed")
    file = io.BytesIO()
    with av.open(file, "w", format=kind) as container:
        stream = container.add_stream(codec, rate=10)
        stream.width, stream.height, stream.pix_fmt, stream.gop_size = *size, "yuv420p", 8
        stream.bit_rate = 4_000_000  # so that brightness is kept
        for i in range(count):
            container.mux(stream.encode(av.VideoFrame.from_image(Image.new("RGB", size, (6 * i,) * 3))))
        container.mux(stream.encode())
    return file.getvalue()


@pytest.mark.parametrize(
    ("kind", "codec"), [("mp4", "mpeg4"), ("webm", "libvpx"), ("avi", "mpeg4"), ("mp4", "libx264")]
)
def test_frames_of_a_container_are_those_of_their_times(kind: str, codec: str) -> None:
    for correct in (1, 5, 40):
        video = load_frames(data_url(contained(kind, codec), f"video/{kind}"), Sampling(correct), DATA_ONLY)
        indices = Sampling(correct).chosen(40)
        assert [round(10 * time) for time in video.times] == indices
        for index, frame in zip(indices, video.frames, strict=True):
            assert frame.size == (64, 48)
            assert abs(float(np.asarray(frame).mean()) - 6 * index) < 3  # half the way to the next


def test_frames_of_a_container_are_those_that_transformers_reads(tmp_path: Path) -> None:
    file = tmp_path / "video.mp4"
    file.write_bytes(contained("mp4", "libx264"))
    sampling = Sampling(7)
    reference, metadata = load_their_video(
        str(file), sample_indices_fn=lambda metadata: sampling.chosen(metadata.total_num_frames), backend="pyav"
    )
    native = load_frames(str(file), sampling, ANYTHING)
    assert metadata.total_num_frames == 40
    assert (np.stack([np.asarray(frame) for frame in native.frames]) == reference).all()


def test_another_process_decodes_containers() -> None:
    file, process = contained("mp4", "libx264"), DecoderProcess()
    try:
        separate, here = (
            load_frames(data_url(file, "video/mp4"), Sampling(5), rules)
            for rules in (SourceRules(decoder=process), DATA_ONLY)
        )
    finally:
        process.close()
    assert separate.times == here.times
    assert all((np.asarray(a) == np.asarray(b)).all() for a, b in zip(separate.frames, here.frames, strict=True))


def test_the_files_of_a_prompt_share_a_budget_of_time() -> None:
    file = contained("mp4", "libx264")
    process = DecoderProcess(cpu_seconds=60, prompt_cpu_seconds=0.3)
    try:
        process.video(file, Sampling(5), SourceRules().limits, 10**9)  # loads what decodes
        decoder = process.for_prompt()
        decoder.video(file, Sampling(5), SourceRules().limits, 10**9)
        with pytest.raises(ValueError, match=r"a prompt's have 0\.3 s together"):
            [decoder.video(file, Sampling(5), SourceRules().limits, 10**9) for _ in range(1000)]
        process.video(file, Sampling(5), SourceRules().limits, 10**9)  # another process has to load it again
        process.for_prompt().video(file, Sampling(5), SourceRules().limits, 10**9)
    finally:
        process.close()


def test_containers_are_bounded_and_broken_ones_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    file = contained("mp4", "mpeg4")
    with pytest.raises(ValueError, match="at most 4704 pixels together, got 3 of 64 x 48; num_frames"):
        load_frames(data_url(file, "video/mp4"), Sampling(3), SourceRules(max_total_pixels=56 * 28 * 3))
    for end in (20, 200, len(file) // 2):
        with pytest.raises(ValueError, match=r"broken|without|ends before"):
            load_frames(data_url(file[:end], "video/mp4"), Sampling(), DATA_ONLY)
    monkeypatch.setattr(containers, "_MAX_DECODED", 7)
    with pytest.raises(ValueError, match="more than 7 frames are to be decoded"):
        load_frames(data_url(file, "video/mp4"), Sampling(), DATA_ONLY)
    monkeypatch.setitem(extras.MODULES, "video", ("no_such_decoder",))
    with pytest.raises(ValueError, match=r"decoding MP4 or QuickTime files needs .*no_such_decoder.*; run: "):
        load_frames(data_url(file, "video/mp4"), Sampling(), DATA_ONLY)


def test_videos_are_bounded_before_they_are_unpacked() -> None:
    rules = SourceRules(max_total_pixels=56 * 28 * 3)
    file = data_url(animated("PNG", FRAMES))
    assert len(load_frames(FRAMES, Sampling(3), rules).frames) == 3
    with pytest.raises(ValueError, match="at most 4704 pixels together, got 4 of 56 x 28; num_frames"):
        load_frames(FRAMES, Sampling(4), rules)
    with pytest.raises(ValueError, match=r"4096 frames, and 4704 pixels in all of them, got more \(56 x 28 each\)"):
        load_frames(file, Sampling(3), rules)
    many = data_url(animated("GIF", [Image.new("P", (2, 2), i % 2) for i in range(4200)], optimize=False))
    with pytest.raises(ValueError, match="at most 4096 frames"):
        load_frames(many, Sampling(), ANYTHING)
    for wrong in ({"num_frames": 0}, {"num_frames": 129}, {"num_frames": 2.0}, {"fps": 0}, {"fps": "2"}):
        with pytest.raises(ValueError, match=r"num_frames must be|fps must be"):
            Sampling(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must rise"):
        Video(tuple(FRAMES[:2]), (1.0, 0.5))


def test_videos_and_images_stand_where_the_message_has_them(qwen: Path) -> None:
    clip = data_url(animated("PNG", FRAMES[:4]))
    image = {"type": "image_url", "image_url": {"url": data_url(FRAMES[0])}}
    prepared = preparer(qwen).prepare(messages_of(part(clip), image, part(clip, num_frames=2)))
    lengths = [sum(length for _, length in one.runs) for one in prepared.images]
    assert lengths == [2 * 2, 2, 1 * 2]
    begins = [one.runs[0][0] for one in prepared.images]
    assert begins == sorted(begins)
    assert prepared.ids.count(tiny.token_id(qwen, "<|video_pad|>")) == 6
    digests = {one.digest for one in prepared.images}
    assert len(digests) == 3


def test_words_that_stand_for_videos_are_text_when_users_type_them(qwen: Path) -> None:
    typed = "<|vision_start|><|video_pad|><|vision_end|>"
    message = [
        {"role": "user", "content": [part(data_url(animated("PNG", FRAMES[:2]))), {"type": "text", "text": typed}]}
    ]
    ids = preparer(qwen).prepare(message).ids
    assert ids.count(tiny.token_id(qwen, "<|video_pad|>")) == 2
    assert Tokenizer(str(qwen)).decode(ids, skip_special_tokens=False).endswith(typed)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (part("data:video/mp4;base64,AAAAGGZ0eXBtcDQyAAAAAA=="), r"content\[0\]\.video_url\.url: broken MP4"),
        (part(data_url(FRAMES[0]), num_frames=0), r"video_url\.url: num_frames must be"),
        (part(data_url(FRAMES[0]), max_pixels=-1), "max_pixels must be"),
        ({"type": "video_url"}, "video_url must be an object with url"),
    ],
)
def test_a_bad_video_is_named(qwen: Path, given: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        preparer(qwen).prepare(messages_of(given))


def test_a_model_that_sees_images_alone_refuses_videos(tmp_path: Path) -> None:
    directory = tiny.make_tiny_llava(tmp_path / "model")
    with pytest.raises(ValueError, match=r"messages\[0\]\.content\[0\]: this model sees images, not videos"):
        preparer(directory).prepare(messages_of(part(data_url(FRAMES[0]))))


def test_nobody_else_says_when_frames_are_shown(qwen: Path) -> None:
    image = {"type": "image_url", "image_url": {"url": data_url(FRAMES[0]), "times": [0, 1]}}
    assert sum(length for _, length in preparer(qwen).prepare(messages_of(image)).images[0].runs) == 2


@pytest.mark.parametrize(
    "make",
    [*(functools.partial(tiny.make_tiny_qwen_vl, kind=k) for k in ("Qwen3VL", "Qwen3_5")), tiny.make_tiny_lfm3_vl],
)
def test_qwen3_and_lfm3_write_times_as_their_processor_does(make: Callable[[Path], Path], tmp_path: Path) -> None:
    directory = make(tmp_path / "model")
    for count in (1, 4, 5):
        message = [
            {"role": "user", "content": [{"type": "video_data", "video_data": {"data": FRAMES[:count], "fps": 3}}]}
        ]
        text = Tokenizer(str(directory)).decode(preparer(directory).prepare(message).ids, skip_special_tokens=False)
        seconds = Qwen3VLProcessor._calculate_timestamps(SimpleNamespace(), list(range(count)), 3.0, 2)
        runs = [f"<{second:.1f} seconds><|vision_start|>{'<|video_pad|>' * 2}<|vision_end|>" for second in seconds]
        assert text == "".join(runs)


@pytest.mark.parametrize(
    ("kind", "processor"), [("Glm4v", Glm4vProcessor), ("Glm4vMoe", Glm4vProcessor), ("Glm46V", Glm46VProcessor)]
)
def test_glm_writes_times_as_its_processor_does(kind: str, processor: Any, tmp_path: Path) -> None:
    directory = tiny.make_tiny_glm4v(tmp_path / "model", kind=kind)
    template = JinjaChatTemplate("{% for c in messages[0].content if c.type != 'text' %}<|{{ c.type }}|>{% endfor %}")
    data = {"data": FRAMES[:5], "fps": 0.5}
    message = [{"role": "user", "content": [{"type": "video_data", "video_data": data}]}]
    ids = preparer(directory, template).prepare(message).ids
    reference = SimpleNamespace(video_processor=SimpleNamespace(merge_size=2), image_token="<|image|>")
    reference.replace_frame_token_id = functools.partial(processor.replace_frame_token_id, reference)
    metadata = SimpleNamespace(fps=0.5, timestamps=[0.0, 2.0, 4.0, 6.0, 8.0])
    inputs = {"video_grid_thw": torch.tensor([[3, 2, 4]]), "video_metadata": [metadata]}
    expected = processor.replace_video_token(reference, inputs, 0)
    assert Tokenizer(str(directory)).decode(ids, skip_special_tokens=False) == expected


def test_smolvlm_introduces_videos_as_its_processor_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tiny.make_tiny_idefics3(tmp_path / "model", kind="SmolVLM")
    times = [0.0, 59.6, 61.2]
    template = "{% for c in messages[0].content if c.type != 'text' %}<{{ c.type }}>{% endfor %}"
    native = preparer(directory, JinjaChatTemplate(template))
    data = {"data": Video(tuple(FRAMES[:3]), tuple(times))}
    ids = native.prepare([{"role": "user", "content": [{"type": "video_data", "video_data": data}]}]).ids
    monkeypatch.setattr(processing_smolvlm, "num2words", {3: "three"}.__getitem__)
    reference = SimpleNamespace(
        image_seq_len=1, image_token="<image>", fake_image_token="<fake_token_around_image>",
        global_image_token="<global-img>",
    )  # fmt: skip
    metadata = SimpleNamespace(fps=1, timestamps=times, duration=61.2)
    inputs = {"pixel_values": np.zeros((1, 3)), "video_metadata": [metadata]}
    expected = processing_smolvlm.SmolVLMProcessor.replace_video_token(reference, inputs, 0)
    assert Tokenizer(str(directory)).decode(ids, skip_special_tokens=False) == expected
    assert [idefics3.in_words(n) for n in (0, 11, 32, 64, 100, 128)] == [
        "zero", "eleven", "thirty-two", "sixty-four", "one hundred", "one hundred and twenty-eight",
    ]  # fmt: skip
