"""Images in conversations: where they are, what users type, and what is refused."""

from pathlib import Path
from typing import Any

import pytest

from lmdeploy.model import ChatTemplateConfig, chat_template_for
from lmdeploy.prompts import PreparedPrompt, PromptPreparer
from lmdeploy.templates.jinja import JinjaChatTemplate
from lmdeploy.tokenizer import Tokenizer
from lmdeploy.vl.prompts import image_writer
from lmdeploy.vl.sources import DATA_ONLY
from tests.support.images import data_url, make_image
from tests.support.tiny_vision_models import make_tiny_idefics3, make_tiny_llava, token_id

RED, OTHER = data_url(make_image(30, 30)), data_url(make_image(30, 30, 1))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llava(tmp_path_factory.mktemp("llava") / "model")


def preparer(directory: Path, template: Any = None, *, splits: bool = False) -> PromptPreparer:
    tokenizer = Tokenizer(str(directory))
    chosen = template or chat_template_for(str(directory), None, tokenizer)
    images = image_writer(directory, tokenizer, chosen, DATA_ONLY)
    return PromptPreparer(tokenizer, chosen, images=images, split_special_tokens=splits)


def shown(*parts: str | tuple[str, str]) -> list[dict[str, Any]]:
    """Return a message of texts and, as tuples, images."""
    content = [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {"type": "image_url", "image_url": {"url": part[1]}}
        for part in parts
    ]
    return [{"role": "user", "content": content}]


def reading(prepared: PreparedPrompt, directory: Path) -> str:
    """Return a prompt with its images as numbers in brackets."""
    tokens: list[Any] = list(prepared.ids)
    for number, placed in reversed(list(enumerate(prepared.images))):
        for begin, length in reversed(placed.runs):
            assert set(prepared.ids[begin : begin + length]) == {token_id(directory, "<image>")}
            tokens[begin : begin + length] = [f"[{number}:{length}]"]
    text, tokenizer = "", Tokenizer(str(directory))
    for token in tokens:
        text += token if isinstance(token, str) else tokenizer.decode([token], skip_special_tokens=False)
    return text


PLAIN = ChatTemplateConfig("plain", system="", user="USER: ", eoh=" ", assistant="BOT:", eoa="\n").chat_template
LISTED = JinjaChatTemplate(
    "{% for m in messages %}{% for c in m.content %}{% if c.type == 'image' %}<image>{% else %}{{ c.text }}{% endif %}"
    "{% endfor %}{% endfor %}"
)


def test_a_template_that_knows_images_puts_them_where_it_does(directory: Path) -> None:
    prepared = preparer(directory).prepare(shown("look", ("", RED), "here", ("", OTHER)))
    assert reading(prepared, directory) == "<s>USER: [0:4]\n[1:4]\nlookhere ASSISTANT:"
    assert reading(preparer(directory, LISTED).prepare(shown("look", ("", RED), "here")), directory) == "look[0:4]here"


def test_a_template_of_texts_gets_images_in_front(directory: Path) -> None:
    prepared = preparer(directory, PLAIN).prepare(shown("look", ("", RED), "here", ("", OTHER)))
    assert reading(prepared, directory).endswith("USER: [0:4]\n[1:4]\nlook\nhere BOT:")


@pytest.mark.parametrize("template", [None, PLAIN, LISTED])
def test_users_may_say_where_images_are(directory: Path, template: Any) -> None:
    question = shown("is <IMAGE_TOKEN> larger than <IMAGE_TOKEN>?", ("", RED), ("", OTHER))
    assert "is [0:4] larger than [1:4]?" in reading(preparer(directory, template).prepare(question), directory)


@pytest.mark.parametrize("splits", [False, True])
@pytest.mark.parametrize("template", [None, PLAIN, LISTED])
def test_words_that_stand_for_images_are_text_when_users_type_them(
    directory: Path, template: Any, splits: bool
) -> None:
    prepare = preparer(directory, template, splits=splits).prepare
    image = token_id(directory, "<image>")
    texts = prepare(shown("what does <image> mean? <IMAGE_TOKEN> <image><image>"))
    assert image not in texts.ids
    assert "what does <image> mean? <IMAGE_TOKEN> <image><image>" in reading(texts, directory)
    both = prepare(shown("<image> is <image>", ("", RED), "<image>"))
    assert both.ids.count(image) == 4
    assert reading(both, directory).count("<image>") == 3
    history = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "<image>"}, *shown(("", RED), "x")]
    assert prepare(history).ids.count(image) == 4


def test_rows_of_tiles_stand_between_their_tags(tmp_path: Path) -> None:
    directory = make_tiny_idefics3(tmp_path / "model")
    prepared = preparer(directory).prepare(shown(("", data_url(make_image(60, 40))), "<row_1_col_1>?"))
    assert [length for _, length in prepared.images[0].runs] == [1] * len(prepared.images[0].runs)
    assert len(prepared.images[0].runs) > 4
    assert prepared.ids.count(token_id(directory, "<row_1_col_1>")) == 1, "a typed tag is a tag"


def test_equal_images_have_equal_digests_and_others_do_not(directory: Path) -> None:
    prepared = preparer(directory).prepare(shown(("", RED), ("", OTHER), ("", RED), "x"))
    first, second, third = (placed.digest for placed in prepared.images)
    assert first == third != second
    options = shown(("", RED), "x")
    options[0]["content"][0]["image_url"]["detail"] = "low"
    assert preparer(directory).prepare(options).images[0].digest != first


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        (
            shown(("", "data:image/png;base64,aGVsbG8="), "x"),
            r"messages\[0\]\.content\[0\]\.image_url\.url: must be",
        ),
        (
            [*shown("hi"), {"role": "assistant", "content": "x"}, *shown("a", ("", "nothing"))],
            r"messages\[2\]\.content\[1\]\.image_url\.url: must be an image's URL",
        ),
        ([{"role": "system", "content": shown(("", RED))[0]["content"]}], r"content\[0\]: only the user's messages"),
        (shown(*[("", RED)] * 65), "at most 64 images"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], r"image_url must be an object with url, got None"),
        (
            shown(("", RED), "x")[0]["content"] and [{"role": "user", "content": [{"type": "video"}]}],
            "'video' is not sup",
        ),
        (
            [{"role": "user", "content": [{"type": "video"}, *shown(("", RED))[0]["content"]]}],
            "must be a text or an im",
        ),
    ],
)
def test_what_is_wrong_is_named(directory: Path, messages: list[dict[str, Any]], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        preparer(directory).prepare(messages)


def test_tuples_are_what_a_user_says_and_shows(directory: Path) -> None:
    prepare = preparer(directory, LISTED).prepare
    assert reading(prepare(("what?", RED)), directory) == "[0:4]what?"
    assert reading(prepare((make_image(9, 9), "what?")), directory) == "[0:4]what?"
    assert reading(prepare(("what?", [RED, OTHER])), directory) == "[0:4][1:4]what?"
    for wrong in (("a",), ("a", RED, OTHER), (make_image(9, 9), make_image(9, 9))):
        with pytest.raises(ValueError, match="must be"):
            prepare(wrong)
