"""Pictures in conversations: taken out of the messages, put into the prompt.

A picture is written by the chat template, where that knows pictures, else in front of the message's texts or where the
message has it. What users type is text, also if it reads like what stands for a picture: such words are replaced by
guards nobody can guess while the template writes, and become tokens of plain text in the end.
"""

import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from PIL.Image import Image

from lmdeploy.prompts import PlacedPicture
from lmdeploy.templates.base import ChatTemplate
from lmdeploy.templates.conversation import Message, Parts
from lmdeploy.tokenizer import Tokenizer
from lmdeploy.vl.constants import IMAGE_TOKEN
from lmdeploy.vl.encoder import digest_of
from lmdeploy.vl.families.common import Options, VisionFamily, VisionPart
from lmdeploy.vl.sources import SourceRules, load
from lmdeploy.vl.tower import counting_part, family_in

_SOURCES = {"image_url": "url", "image_data": "data"}  # type of a part -> key of what it is of
# In place of a picture's number: a user typed the word, or the template wrote it.
_USERS, _TEMPLATES = -1, -2


@dataclass(frozen=True)
class _Picture:
    image: Image
    options: Options


class PictureWriter:
    """Puts pictures into the prompts of one model. Safe to use from any thread.

    Parameters
    ----------
    family, part
        How the model sees, and what counts its tokens.
    tokenizer, template
        The model's.
    rules
        Which pictures callers may name.
    """

    def __init__(
        self,
        family: VisionFamily,
        part: VisionPart,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        rules: SourceRules,
    ) -> None:
        self.family, self.part, self.rules = family, part, rules
        self.mark = family.mark or family.token
        ids = tokenizer.ids_of((family.token, *family.words))
        if ids[0] is None:
            raise ValueError(f"the tokenizer has no token {family.token}, which stands for pictures")
        self.token_ids = {word: i for word, i in zip((family.token, *family.words), ids, strict=True) if i is not None}
        self.words = tuple(self.token_ids)
        self.any_word = re.compile("|".join(map(re.escape, sorted(self.words, key=len, reverse=True))))
        self.plain_ids = {
            word: tokenizer.encode(word[0], add_bos=False) + tokenizer.encode(word[1:], add_bos=False)
            for word in self.words
        }
        self._writes_pictures = _writes_pictures(template, self.mark)
        # Characters of the private use area, and what nobody can guess.
        nonce = secrets.token_hex(8)
        self._guards = {word: f"\ue0f0{nonce}.{i}\ue0f1" for i, word in enumerate(self.words)}
        self.guarded = {guard: word for word, guard in self._guards.items()}
        self.any_mark = re.compile(f"{self.any_word.pattern}|\ue0f0{nonce}\\.\\d+\ue0f1")

    def read(self, messages: list[Message]) -> "Conversation":
        """Return a conversation without its pictures, and these.

        Raises
        ------
        ValueError
            If a part is no picture, or may not be one; names it.
        """
        pictures: list[_Picture] = []
        if not isinstance(messages, list):
            return Conversation(self, messages, pictures)
        read = [self._read_message(f"messages[{i}]", message, pictures) for i, message in enumerate(messages)]
        return Conversation(self, read, pictures)

    def _read_message(self, where: str, message: Message, pictures: list[_Picture]) -> Message:
        content = message.get("content") if isinstance(message, Mapping) else None
        if isinstance(content, str):
            return {**message, "content": self._guard(content)}
        if not isinstance(content, list):
            return message
        parts: list[Any] = []
        for i, part in enumerate(content):
            kind = part.get("type") if isinstance(part, Mapping) else None
            if kind in _SOURCES:
                if message.get("role") != "user":
                    raise ValueError(f"{where}.content[{i}]: only the user's messages may have pictures")
                if len(pictures) >= self.rules.max_pictures:
                    raise ValueError(f"a prompt may have at most {self.rules.max_pictures} pictures, got more")
                pixels = sum(picture.image.width * picture.image.height for picture in pictures)
                pictures.append(self._read_picture(f"{where}.content[{i}]", kind, part, pixels))
                parts.append(None)
            elif kind == "text" and isinstance(part.get("text"), str):
                parts.append({**part, "text": self._guard(part["text"])})
            else:
                parts.append(part)
        if None not in parts:
            return {**message, "content": parts}
        for i, part in enumerate(parts):
            if part is not None and _text(part) is None:
                raise ValueError(f"{where}.content[{i}] must be a text or an image_url, got {part!r:.80}")
        return {**message, "content": self._content(parts)}

    def _read_picture(self, where: str, kind: str, part: Mapping[str, Any], pixels: int) -> _Picture:
        given = part.get(kind)
        key = _SOURCES[kind]
        if kind == "image_url" and isinstance(given, str):
            given = {"url": given}
        if not isinstance(given, Mapping) or key not in given:
            raise ValueError(f"{where}.{kind} must be an object with {key}, got {given!r:.80}")
        options = {name: value for name, value in given.items() if name != key and value is not None}
        room = self.rules.max_total_pixels - pixels
        limits = replace(self.rules.limits, max_pixels=min(self.rules.limits.max_pixels, room))
        try:
            return _Picture(load(given[key], replace(self.rules, limits=limits)), options)
        except ValueError as error:
            raise ValueError(f"{where}.{kind}.{key}: {error}") from None

    def _content(self, parts: Sequence[Any]) -> Any:
        """Return what the template gets for a message with pictures, which are None."""
        token, count = self.family.token, sum(part is None for part in parts)
        texts = [part for part in parts if part is not None]
        if sum(part["text"].count(IMAGE_TOKEN) for part in texts) == count:  # the message says where
            placed = [{**part, "text": part["text"].replace(IMAGE_TOKEN, token)} for part in texts]
            return Parts(placed) if self._writes_pictures else placed
        if self._writes_pictures:
            return Parts({"type": "image"} if part is None else part for part in parts)
        if self.family.goes_first:
            parts = [None] * count + texts
        content, was_text = "", False
        for part in parts:
            content += self.family.written if part is None else ("\n" if was_text else "") + part["text"]
            was_text = part is not None
        return content

    def _guard(self, text: str) -> str:
        return self.any_word.sub(lambda match: self._guards[match[0]], text)


class Conversation:
    """A conversation whose pictures were taken out, on its way to token ids.

    Parameters
    ----------
    writer
        Of the model.
    messages, pictures
        The conversation, and its pictures in order.
    """

    def __init__(self, writer: PictureWriter, messages: list[Message], pictures: list[_Picture]) -> None:
        self.messages = messages
        self._writer = writer
        several = {"several": len(pictures) > 1} if writer.family.minds_others else {}
        self._pictures = [replace(picture, options={**picture.options, **several}) for picture in pictures]
        self._words: list[tuple[str, int]] = []  # those in the prompt that are tokens, and whose

    def written(self, rendered: str) -> str:
        """Return the prompt with all that stands for its pictures.

        Raises
        ------
        ValueError
            If the chat template has lost pictures.
        """
        writer, seen = self._writer, 0
        pieces: list[str] = []
        end = 0
        for match in writer.any_mark.finditer(rendered):
            pieces.append(rendered[end : match.start()])
            end = match.end()
            word = writer.guarded.get(match[0])
            if word is not None:
                pieces.append(word)
                self._words.append((word, _USERS))
            elif match[0] == writer.mark and seen < len(self._pictures):
                expansion = self._expansion(seen)
                pieces.append(expansion)
                self._words += [(found[0], seen) for found in writer.any_word.finditer(expansion)]
                seen += 1
            else:
                pieces.append(match[0])
                self._words.append((match[0], _TEMPLATES))
        if seen < len(self._pictures):
            raise ValueError(f"the model's chat template shows {seen} of {len(self._pictures)} pictures")
        return "".join(pieces) + rendered[end:]

    def placed(self, ids: list[int]) -> tuple[list[int], tuple[PlacedPicture, ...]]:
        """Return the prompt's tokens, and where its pictures are.

        Raises
        ------
        ValueError
            If the tokenizer has split what stands for a picture.
        """
        if not self._words:
            return ids, ()
        writer = self._writer
        wanted = set(writer.token_ids.values())
        found = [position for position, token in enumerate(ids) if token in wanted]
        if [ids[position] for position in found] != [writer.token_ids[word] for word, _ in self._words]:
            raise ValueError("the tokenizer does not keep what stands for a picture apart from the text around it")
        tokens: list[int] = []
        places: list[list[int]] = [[] for _ in self._pictures]
        end = 0
        for position, (word, picture) in zip(found, self._words, strict=True):
            tokens += ids[end:position]
            if picture == _USERS:
                tokens += writer.plain_ids[word]
            else:
                if picture != _TEMPLATES and word == writer.family.token:
                    places[picture].append(len(tokens))
                tokens.append(ids[position])
            end = position + 1
        placed = (
            PlacedPicture(picture.image, picture.options, digest_of(picture.image, picture.options), tuple(_runs(at)))
            for picture, at in zip(self._pictures, places, strict=True)
        )
        return tokens + ids[end:], tuple(placed)

    def _expansion(self, place: int) -> str:
        picture, family, part = self._pictures[place], self._writer.family, self._writer.part
        return family.number(part, place, picture.options) + family.expansion(part, picture.image.size, picture.options)


def _text(part: object) -> str | None:
    text = part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None
    return text if isinstance(text, str) else None


def _runs(places: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield begin and length of each run of numbers that follow each other."""
    begin = 0
    for i in range(1, len(places) + 1):
        if i == len(places) or places[i] != places[i - 1] + 1:
            yield places[begin], i - begin
            begin = i


def _writes_pictures(template: ChatTemplate, mark: str) -> bool:
    """Return whether a template writes pictures itself, each as one mark."""
    turn = {"role": "user", "content": Parts([{"type": "image"}, {"type": "text", "text": "-"}])}
    try:
        return template.render([turn]).count(mark) == 1
    except (ValueError, TypeError):
        return False


def picture_writer(
    checkpoint: Path, tokenizer: Tokenizer, template: ChatTemplate, rules: SourceRules
) -> PictureWriter | None:
    """Return what puts pictures into a model's prompts; None if it cannot be shown any.

    Raises
    ------
    CheckpointError
        If its image processor cannot be read.
    """
    found = family_in(checkpoint)
    return None if found is None else PictureWriter(found[1], counting_part(checkpoint), tokenizer, template, rules)
