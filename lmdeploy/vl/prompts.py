"""Image and video placeholders in conversations: taken out of the messages, put into the prompt.

An image is written by the chat template, where that knows images, else in front of the message's texts or where the
message has it. What users type is text, also if it reads like what stands for an image: such words are replaced by
guards nobody can predict while the template writes, and become tokens of plain text in the end.
"""

import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from PIL.Image import Image

from lmdeploy.prompts import PromptImage
from lmdeploy.templates.base import ChatTemplate
from lmdeploy.templates.conversation import Message, Parts
from lmdeploy.tokenizer import Tokenizer
from lmdeploy.vl.constants import IMAGE_TOKEN
from lmdeploy.vl.encoder import digest_of
from lmdeploy.vl.families.common import Options, VideoForm, VisionFamily, VisionPart
from lmdeploy.vl.sources import SourceRules, load, load_frames
from lmdeploy.vl.tower import counting_part, family_in
from lmdeploy.vl.videos import Sampling, frame_size

_SOURCES = {"image_url": "url", "image_data": "data"}  # type of a part -> key of what it is of
_VIDEOS = {"video_url": "url", "video_data": "data"}
# In place of an image's number: a user typed the word, or the template wrote it.
_USERS, _TEMPLATES = -1, -2


@dataclass(frozen=True)
class _Image:
    """An image, or, with the video form, the frames of a video below each other."""

    image: Image
    options: Options
    form: VisionFamily | VideoForm

    @property
    def placeholder(self) -> str:
        return self.form.placeholder or self.form.token

    def has_row(self, word: str) -> bool:
        return word in (self.form.token, *getattr(self.form, "seen_words", ()))

    def expansion(self, part: VisionPart) -> str:
        return self.form.expansion(part, frame_size(self.image.size, self.options), self.options)


class ImageWriter:
    """Puts images into the prompts of one model. Safe to use from any thread.

    ``rules``: which images callers may name.
    """

    def __init__(
        self, family: VisionFamily, part: VisionPart, tokenizer: Tokenizer, template: ChatTemplate, rules: SourceRules
    ) -> None:
        if family.other_token and tokenizer.ids_of([family.token])[0] is None:
            family = family.with_token(family.other_token)
        # How the model sees, and what counts its tokens
        self.family, self.part, self.rules = family, part, rules
        forms: list[VisionFamily | VideoForm] = [family] if family.video is None else [family, family.video]
        words = list(dict.fromkeys(word for form in forms for word in (form.token, *form.words)))
        self.token_ids = {word: i for word, i in zip(words, tokenizer.ids_of(words), strict=True) if i is not None}
        if family.token not in self.token_ids:
            raise ValueError(f"the tokenizer has no token {family.token}, which stands for images")
        bos = tokenizer.bos_token_id
        self._bos = "" if bos is None else tokenizer.decode([bos], skip_special_tokens=False)
        self._video = family.video if family.video and family.video.token in self.token_ids else None
        self.any_token = _any_of(self.token_ids)
        self.text_ids = {
            word: tokenizer.encode(word[0], add_bos=False) + tokenizer.encode(word[1:], add_bos=False)
            for word in self.token_ids
        }
        self._writes_images = _writes(template, "image", family.placeholder or family.token)
        self._writes_videos = self._video is not None and _writes(
            template, "video", self._video.placeholder or self._video.token
        )
        # Characters of the private use area, and what nobody can predict.
        nonce = secrets.token_hex(8)
        texts = list(dict.fromkeys([*self.token_ids, *(form.placeholder for form in forms if form.placeholder)]))
        self._any_text = _any_of(texts)
        self._guards = {text: f"\ue0f0{nonce}.{i}\ue0f1" for i, text in enumerate(texts)}
        self.guarded = {guard: text for text, guard in self._guards.items()}
        self.any_placeholder = re.compile(f"{self._any_text.pattern}|\ue0f0{nonce}\\.\\d+\ue0f1")

    def read(self, messages: list[Message], raise_if_cancelled: Callable[[], None] = lambda: None) -> "Conversation":
        """Return a conversation without its images, and these.

        Raises `ValueError` if a part is no image, or may not be one; names it. ``raise_if_cancelled``: called before
        each image: raises what is to be raised if nobody waits for the prompt any more.
        """
        images: list[_Image] = []
        if not isinstance(messages, list):
            return Conversation(self, messages, images)
        rules = replace(self.rules, decoder=self.rules.decoder.for_prompt())

        def read_image(where: str, kind: str, part: Mapping[str, Any]) -> _Image:
            raise_if_cancelled()
            if len(images) >= rules.max_images:
                raise ValueError(f"a prompt may have at most {rules.max_images} images, got more")
            pixels = sum(image.image.width * image.image.height for image in images)
            images.append(self._read_image(where, kind, part, rules, rules.max_total_pixels - pixels))
            return images[-1]

        read = [self._read_message(f"messages[{i}]", message, read_image) for i, message in enumerate(messages)]
        return Conversation(self, read, images)

    def _read_message(
        self, where: str, message: Message, read_image: Callable[[str, str, Mapping[str, Any]], _Image]
    ) -> Message:
        content = message.get("content") if isinstance(message, Mapping) else None
        if isinstance(content, str):
            return {**message, "content": self._guard(content)}
        if not isinstance(content, list):
            return message
        parts: list[Any] = []
        for i, part in enumerate(content):
            kind = part.get("type") if isinstance(part, Mapping) else None
            if kind in _SOURCES or kind in _VIDEOS:
                if message.get("role") != "user":
                    raise ValueError(f"{where}.content[{i}]: only the user's messages may have images")
                parts.append(read_image(f"{where}.content[{i}]", kind, part))
            elif kind == "text" and isinstance(part.get("text"), str):
                parts.append({**part, "text": self._guard(part["text"])})
            else:
                parts.append(part)
        if not any(isinstance(part, _Image) for part in parts):
            return {**message, "content": parts}
        for i, part in enumerate(parts):
            if not isinstance(part, _Image) and _text(part) is None:
                raise ValueError(f"{where}.content[{i}] must be a text or an image_url, got {part!r:.80}")
        return {**message, "content": self._content(parts)}

    def _read_image(
        self, where: str, kind: str, part: Mapping[str, Any], rules: SourceRules, max_pixels: int
    ) -> _Image:
        given = part.get(kind)
        key = (_SOURCES | _VIDEOS)[kind]
        if kind in _VIDEOS and self._video is None:
            raise ValueError(f"{where}: this model sees images, not videos; frames can be sent as images")
        if key == "url" and isinstance(given, str):
            given = {"url": given}
        if not isinstance(given, Mapping) or key not in given:
            raise ValueError(f"{where}.{kind} must be an object with {key}, got {given!r:.80}")
        options = {name: value for name, value in given.items() if name not in (key, "times") and value is not None}
        limits = replace(rules.limits, max_pixels=min(rules.limits.max_pixels, max_pixels))
        rules = replace(rules, limits=limits, max_total_pixels=max_pixels)
        try:
            if kind in _SOURCES or self._video is None:
                return _Image(load(given[key], rules), options, self.family)
            sampling = Sampling(**{name: options.pop(name) for name in ("num_frames", "fps") if name in options})
            video = load_frames(given[key], sampling, rules)
            return _Image(video.stacked(), {**options, "times": list(video.times)}, self._video)
        except ValueError as error:
            raise ValueError(f"{where}.{kind}.{key}: {error}") from None

    def _content(self, parts: Sequence[Any]) -> Any:
        """Return the template's form of a message with images."""
        shown = [part for part in parts if isinstance(part, _Image)]
        texts = [part for part in parts if not isinstance(part, _Image)]
        if sum(part["text"].count(IMAGE_TOKEN) for part in texts) == len(shown):  # the message says where
            written = iter([image.form.written.rstrip("\n") for image in shown])
            placed = [{**part, "text": re.sub(IMAGE_TOKEN, lambda _: next(written), part["text"])} for part in texts]
            return Parts(placed) if self._writes_images else placed
        if self._writes_images:
            return Parts(self._for_template(part) if isinstance(part, _Image) else part for part in parts)
        if self.family.goes_first:
            parts = [*shown, *texts]
        content, was_text = "", False
        for part in parts:
            is_text = not isinstance(part, _Image)
            content += ("\n" if was_text else "") + part["text"] if is_text else part.form.written
            was_text = is_text
        return content

    def _for_template(self, image: _Image) -> dict[str, str]:
        if image.form is self.family:
            return {"type": "image"}
        return {"type": "video"} if self._writes_videos else {"type": "text", "text": image.form.written}

    def with_images_first(self, rendered: str) -> str:
        """Return a rendered prompt with what stands for images in front, after the token that begins a text."""
        placeholders = [match[0] for match in self.any_placeholder.finditer(rendered) if match[0] not in self.guarded]
        rest = self.any_placeholder.sub(lambda match: match[0] if match[0] in self.guarded else "", rendered)
        begin = len(self._bos) if self._bos and rest.startswith(self._bos) else 0
        return rest[:begin] + "".join(placeholders) + rest[begin:]

    def _guard(self, text: str) -> str:
        return self._any_text.sub(lambda match: self._guards[match[0]], text)


class Conversation:
    """A conversation whose images were taken out, on its way to token ids.

    ``messages``, ``images``: the conversation, and its images in order.
    """

    def __init__(self, writer: ImageWriter, messages: list[Message], images: list[_Image]) -> None:
        self.messages = messages
        self._writer = writer
        seen = sum(image.form is writer.family for image in images)
        several = {"several": seen > 1} if writer.family.minds_others else {}
        self._images = [replace(image, options={**image.options, **several}) for image in images]
        self._words: list[tuple[str, int]] = []  # those in the prompt that are tokens, and whose

    def written(self, rendered: str) -> str:
        """Return the prompt with all that stands for its images.

        Raises `ValueError` if the chat template has lost images.
        """
        writer, left = self._writer, list(range(len(self._images)))
        if writer.family.leads_prompt and self._images:
            rendered = writer.with_images_first(rendered)
        pieces: list[str] = []
        end = 0
        for match in writer.any_placeholder.finditer(rendered):
            pieces.append(rendered[end : match.start()])
            end = match.end()
            piece, whose = writer.guarded.get(match[0]), _USERS
            if piece is None:
                whose = next((index for index in left if self._images[index].placeholder == match[0]), _TEMPLATES)
                piece = match[0] if whose == _TEMPLATES else self._expansion(whose, rendered[: match.start()])
            if whose >= 0:
                left.remove(whose)
            pieces.append(piece)
            self._words += [(found[0], whose) for found in writer.any_token.finditer(piece)]
        if left:
            count = len(self._images)
            raise ValueError(f"the model's chat template shows {count - len(left)} of {count} images")
        return "".join(pieces) + rendered[end:]

    def placed(self, ids: list[int]) -> tuple[list[int], tuple[PromptImage, ...]]:
        """Return the prompt's tokens, and where its images are.

        Raises `ValueError` if the tokenizer has split what stands for an image.
        """
        if not self._words:
            return ids, ()
        writer = self._writer
        image_ids = set(writer.token_ids.values())
        found = [position for position, token in enumerate(ids) if token in image_ids]
        if [ids[position] for position in found] != [writer.token_ids[word] for word, _ in self._words]:
            raise ValueError("the tokenizer does not keep what stands for an image apart from the text around it")
        tokens: list[int] = []
        positions: list[list[int]] = [[] for _ in self._images]
        end = 0
        for position, (word, image) in zip(found, self._words, strict=True):
            tokens += ids[end:position]
            if image == _USERS:
                tokens += writer.text_ids[word]
            else:
                if image != _TEMPLATES and self._images[image].has_row(word):
                    positions[image].append(len(tokens))
                tokens.append(ids[position])
            end = position + 1
        placed = (
            PromptImage(image.image, image.options, digest_of(image.image, image.options), tuple(_runs(at)))
            for image, at in zip(self._images, positions, strict=True)
        )
        return tokens + ids[end:], tuple(placed)

    def _expansion(self, index: int, before: str) -> str:
        image, part = self._images[index], self._writer.part
        form = image.form
        number = form.number(part, index, image.options) if isinstance(form, VisionFamily) else ""
        is_numbered = bool(number) and before.rstrip().endswith(number.rstrip())  # by who wrote the text
        return ("" if is_numbered else number) + image.expansion(part)


def _text(part: object) -> str | None:
    text = part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None
    return text if isinstance(text, str) else None


def _runs(positions: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield begin and length of each run of numbers that follow each other."""
    begin = 0
    for i in range(1, len(positions) + 1):
        if i == len(positions) or positions[i] != positions[i - 1] + 1:
            yield positions[begin], i - begin
            begin = i


def _any_of(texts: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern that finds the longest of some texts."""
    return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))))


def _writes(template: ChatTemplate, kind: str, placeholder: str) -> bool:
    """Return whether a template writes images, or videos, itself, each as one placeholder."""
    turn = {"role": "user", "content": Parts([{"type": kind}, {"type": "text", "text": "-"}])}
    try:
        return template.render([turn]).count(placeholder) == 1
    except (ValueError, TypeError):
        return False


def image_writer(
    checkpoint: Path, tokenizer: Tokenizer, template: ChatTemplate, rules: SourceRules
) -> ImageWriter | None:
    """Return the writer of images in a model's prompts; None if it takes no images.

    Raises `CheckpointError` if its image processor cannot be read.
    """
    found = family_in(checkpoint)
    return None if found is None else ImageWriter(found[1], counting_part(checkpoint), tokenizer, template, rules)
