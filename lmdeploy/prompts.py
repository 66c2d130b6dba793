"""Prompt preparation, from a text or conversation to token ids, offline and behind Triton."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from lmdeploy.known_responses import KnownResponse, find_responses, take_tokens
from lmdeploy.plain_text import PlainText, pieces_of
from lmdeploy.sessions import SessionState
from lmdeploy.templates.base import ChatTemplate
from lmdeploy.templates.conversation import Message, rounds_of
from lmdeploy.templates.of_adapters import AdapterTemplates
from lmdeploy.tokenizer import Tokenizer

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image

logger = logging.getLogger(__name__)

Prompt = str | list[Message] | tuple[Any, Any]


@dataclass(frozen=True)
class PromptImage:
    """Image or video of a prompt, and the placeholder tokens that it replaces."""

    # RGB, of a video the frames below each other; and how its caller wants it processed
    image: "Image"
    options: Mapping[str, Any]
    digest: bytes  # 32 bytes, made of both
    runs: tuple[tuple[int, int], ...]  # first token and length of each run of tokens


@dataclass(frozen=True)
class ImageRows:
    """Image embeddings in place of a run of a prompt's tokens, and the cross-attention of the text from there on."""

    begin: int  # the first of these tokens
    # ``[tokens + cross_tokens, hidden]`` of type ``dtype``; as 16-bit integers for ``bfloat16``
    rows: "np.ndarray[Any, np.dtype[Any]]"
    # 32 bytes, made of all that the rows were made of: prompts share cached blocks where theirs are equal
    digest: bytes
    dtype: str = "float32"  # ``float32``, ``bfloat16`` or ``float16``
    # Frames, rows and columns that the tokens stand for, where the model's positions have three axes; else zeros
    grid: tuple[int, int, int] = (0, 0, 0)
    frame_step: float = 1.0  # how many positions these frames are apart
    cross_tokens: int = 0  # how many rows stand for no token: for models whose text looks at images by cross-attention

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return int(self.rows.shape[0]) - self.cross_tokens


class PreparedPrompt(NamedTuple):
    """Prepared prompt: token ids, stop strings, number of user turns, and images.

    ``rows`` are those of the images, once something has looked at them.
    """

    ids: list[int]
    stop_words: list[str]
    rounds: int = 1
    images: tuple[PromptImage, ...] = ()
    rows: tuple[ImageRows, ...] = ()


class ShownConversation(Protocol):
    """Conversation with extracted images, before tokenization."""

    messages: list[Message]

    def written(self, rendered: str) -> str:
        """Return the rendered prompt with its image placeholders expanded."""

    def placed(self, ids: list[int]) -> tuple[list[int], tuple[PromptImage, ...]]:
        """Return the prompt's tokens and the positions of its images, from the tokenizer's ids."""


class ImageReader(Protocol):
    """Extracts the images of conversations (`lmdeploy.vl`)."""

    def read(self, messages: list[Message], raise_if_cancelled: Callable[[], None]) -> ShownConversation:
        """Raise ``ValueError`` naming the part that is no image, or may not be one; call the other before each."""


def as_messages(prompt: Prompt) -> list[Message]:
    """Return a prompt as OpenAI messages.

    A text is what the user says; ``(text, image)`` or ``(text, [image, ...])`` is what the user says and shows, a
    image also being a video.

    Raises
    ------
    ValueError
        If a tuple is neither.
    """
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    if not isinstance(prompt, tuple):
        return prompt
    texts = [item for item in prompt if isinstance(item, str)]
    if len(prompt) != 2 or not texts:
        raise ValueError(f"a prompt with images must be (text, image or list of them), got {prompt!r:.80}")
    text, shown = (prompt[0], prompt[1]) if isinstance(prompt[0], str) else (prompt[1], prompt[0])
    images = shown if isinstance(shown, list) else [shown]
    content = [_image_part(image) for image in images] + [{"type": "text", "text": text}]
    return [{"role": "user", "content": content}]


def _image_part(image: object) -> dict[str, Any]:
    if isinstance(image, str):
        return {"type": "image_url", "image_url": {"url": image}}
    kind = "video_data" if hasattr(image, "times") else "image_data"  # a Video of lmdeploy.vl
    return {"type": kind, kind: {"data": image}}


# Texts of few bytes a token, as most are, are tokenized at once; of longer ones the tokens are counted in slices first.
_USUAL_BYTES = 8
_SLICE = 16_384  # characters
_CUT_TOKENS = 16  # at most, that cutting a text makes more of it


@dataclass(frozen=True)
class PromptBound:
    """Bounds of a model's prompts: tokens of its context, and the bytes of the longest token."""

    tokens: int
    max_token_bytes: int


class PromptPreparer:
    """Chat template and tokenizer of one model. Safe to use from any thread.

    Parameters
    ----------
    tokenizer, template
        The model's.
    bound
        A text that cannot fit is refused before it keeps the tokenizer busy for seconds. None: none is.
    max_log_len
        Most characters of a prompt shown in the log, at level INFO; None: all, 0: none.
    images
        For a vision-language model.
    split_special_tokens
        Special tokens written in texts, messages and tools are text, as any other: only the chat template makes them.

    Attributes
    ----------
    adapter_templates
        Those that go before ``template`` in prompts for their adapters.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        *,
        bound: PromptBound | None = None,
        max_log_len: int | None = None,
        images: ImageReader | None = None,
        split_special_tokens: bool = False,
    ) -> None:
        self.tokenizer = tokenizer
        self.adapter_templates = AdapterTemplates(tokenizer)
        self._images = images
        self._template = template
        self._bound = bound
        self._max_log_len = max_log_len
        self._plain_text = PlainText(tokenizer.added_tokens) if split_special_tokens else None

    @property
    def has_images(self) -> bool:
        """Whether prompts may have images."""
        return self._images is not None

    def prepare(
        self,
        prompt: Prompt,
        do_preprocess: bool = True,
        tools: list[dict[str, Any]] | None = None,
        state: SessionState | None = None,
        template_options: Mapping[str, Any] | None = None,
        adapter_name: str | None = None,
        template: ChatTemplate | None = None,
        add_special_tokens: bool | None = None,
        raise_if_cancelled: Callable[[], None] = lambda: None,
    ) -> PreparedPrompt:
        """Return the engine's input for a prompt.

        Parameters
        ----------
        prompt
            A text, which is what the user says, or a conversation. Messages of the assistant may have ``token_ids``,
            the tokens it wrote their content in, which then are in the prompt where they can.
        do_preprocess
            False: a text is a finished prompt, and no chat template is applied.
        tools
            OpenAI tool descriptions for the chat template.
        state
            What the engine holds of the conversation already; ``prompt`` is only what follows. None: nothing.
        template_options
            Variables for the chat template (``chat_template_kwargs``); with ``add_generation_prompt`` false nobody
            is to speak after the conversation, with ``continue_final_message`` true its last message is the beginning
            of the response.
        adapter_name
            The LoRA adapter that answers, whose own chat template is applied if it has one.
        template
            The chat template of this prompt, before any other; None: that of the adapter or the model.
        add_special_tokens
            As `Tokenizer.encode`, for callers that only count or look at tokens, of which there may be none; None: as a
            response needs them.
        raise_if_cancelled
            Called before costly steps: raises what is to be raised if nobody waits for the prompt any more.

        Raises
        ------
        ValueError
            If it is malformed or too long, or there is nothing in it.
        """
        if isinstance(prompt, str) and not do_preprocess:
            text = prompt if self._plain_text is None else self._plain_text.cut(prompt)
            if add_special_tokens is not None:
                return PreparedPrompt(self.encode(text, add_bos=add_special_tokens), [])
            return PreparedPrompt(_not_empty(self.encode(text, add_bos=state is None)), [])
        messages, tokens_reported = take_tokens(as_messages(prompt))
        if self._plain_text is not None:
            messages, tools = self._plain_text.cut_messages(messages), self._plain_text.cut_tools(tools)
            template_options = self._plain_text.cut_options(template_options or {})
        shown = None if self._images is None else self._images.read(messages, raise_if_cancelled)
        if shown is not None:
            messages = shown.messages
        template = template or self.adapter_templates.get(adapter_name) or self._template
        options = dict(template_options or ())
        speaks = options.pop("add_generation_prompt", True) is not False
        continues = options.pop("continue_final_message", False) is True
        if options:
            template = template.with_options(options)
        if state is None:
            rendered = template.render(messages, tools, speaks, continues)
        elif continues:
            raise ValueError("continue_final_message is not supported in a session")
        elif tools:
            raise ValueError("tools must come with the beginning of a session, got them in a later request")
        else:
            rendered = template.render_continuation(messages, state.is_turn_closed, state.rounds)
        if shown is not None:
            rendered = shown.written(rendered)
        raise_if_cancelled()
        known: list[KnownResponse] = []
        if tokens_reported and state is None and shown is None and self._plain_text is None:
            known = find_responses(
                rendered,
                messages,
                tokens_reported,
                self.tokenizer,
                lambda marked: template.render(marked, tools, speaks, continues),
            )
        add_bos = template.add_bos and state is None if add_special_tokens is None else add_special_tokens
        ids = self.encode(rendered, add_bos=add_bos, known=known)
        images: tuple[PromptImage, ...] = ()
        if shown is not None:
            ids, images = shown.placed(ids)
        if images and self._bound is not None and len(ids) > self._bound.tokens:  # before anything looks at them
            raise ValueError(_too_long(self._bound, len(ids)))
        return PreparedPrompt(_not_empty(ids), template.stop_words, rounds_of(messages), images)

    def encode(self, text: str, *, add_bos: bool, known: Sequence[KnownResponse] = ()) -> list[int]:
        """Return the token ids of a rendered prompt, of which some spans may be known.

        Raises
        ------
        ValueError
            If it is too long.
        """
        if self._max_log_len != 0:
            logger.info("prompt: %r", text[: self._max_log_len])
        pieces = [text] if self._plain_text is None else pieces_of(text)
        if self._bound is not None:
            self._check_length("".join(pieces), self._bound)
        if not known:
            return self.tokenizer.encode_joined(pieces, add_bos)
        ids, begin = [], 0
        for response in known:
            ids += self.tokenizer.encode(text[begin : response.begin], add_bos and not begin) + response.ids
            begin = response.end
        return ids + self.tokenizer.encode(text[begin:], add_bos=False)

    def _check_length(self, text: str, bound: PromptBound) -> None:
        """Reject a text with more tokens than fit, at about the cost of one that fits."""
        size = len(text.encode(errors="surrogatepass"))
        if size > bound.tokens * bound.max_token_bytes:
            raise ValueError(_too_long(bound, f"{size} bytes"))
        if size <= _USUAL_BYTES * bound.tokens:
            return
        counted = 0
        for begin in range(0, len(text), _SLICE):
            ids = self.tokenizer.encode(text[begin : begin + _SLICE], add_bos=False)
            counted += max(0, len(ids) - _CUT_TOKENS)
            if counted > bound.tokens:
                raise ValueError(_too_long(bound, "more"))


def _too_long(bound: PromptBound, tokens: int | str) -> str:
    """Return the engine's words for a prompt of this many tokens, or this many bytes which cannot be fewer tokens."""
    return f"the prompt must be shorter than the session length of {bound.tokens} tokens, got {tokens}"


def _not_empty(ids: list[int]) -> list[int]:
    if not ids:
        raise ValueError("the prompt must have at least one token, got none")
    return ids
