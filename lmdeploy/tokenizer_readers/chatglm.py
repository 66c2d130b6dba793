"""ChatGLM 2 and 3, ``ChatGLMTokenizer``: a SentencePiece model, and special tokens behind its vocabulary."""

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from sentencepiece import SentencePieceProcessor
from tokenizers import AddedToken
from transformers import PreTrainedTokenizer

from lmdeploy.tokenizer_readers.settings import TokenizerSettings

_CHATGLM2 = ("[MASK]", "[gMASK]", "[sMASK]", "sop", "eop")
_CHATGLM3 = (*_CHATGLM2, "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>")
_PREFIX = ("[gMASK]", "sop")


def read(settings: TokenizerSettings) -> Any:
    """Return the tokenizer. Both generations publish the same files; one names itself ChatGLM2, or it is ChatGLM3."""
    is_chatglm2 = "chatglm2" in str(settings.content.get("name_or_path", "")).lower()
    special = _CHATGLM2 if is_chatglm2 else _CHATGLM3
    return ChatGLMTokenizer(str(settings.file("tokenizer.model")), special, chat_template=settings.chat_template)


class ChatGLMTokenizer(PreTrainedTokenizer):  # type: ignore[misc]
    """A SentencePiece model between special tokens; ``[gMASK]`` and ``sop`` come before every text.

    Special tokens written in a text become those tokens. ``sop`` and ``eop`` look like parts of words: ``sop`` is one
    behind ``[gMASK]`` only, where chat templates write it, ``eop`` never.

    Parameters
    ----------
    model_file
        The SentencePiece model.
    special
        Texts of the tokens behind its vocabulary, in order.
    chat_template
        In Jinja.
    """

    def __init__(self, model_file: str, special: Sequence[str], chat_template: Any = None) -> None:
        self.sp_model = SentencePieceProcessor(model_file=model_file)
        size = self.sp_model.get_piece_size()
        self._special = {text: size + i for i, text in enumerate(special)}
        self._prefix = [self._special[text] for text in _PREFIX]
        written = ["".join(_PREFIX), *(text for text in special if not text.isalpha())]
        self._written = re.compile("(" + "|".join(map(re.escape, written)) + ")")
        super().__init__(
            added_tokens_decoder={
                token: AddedToken(text, special=True, normalized=False) for text, token in self._special.items()
            },
            eos_token=self.sp_model.id_to_piece(self.sp_model.eos_id()),
            chat_template=chat_template,
        )

    @property
    def vocab_size(self) -> int:
        """The pieces of the SentencePiece model."""
        size: int = self.sp_model.get_piece_size()
        return size

    def get_vocab(self) -> dict[str, int]:
        """Return the id of each piece and of each special token."""
        return {self.sp_model.id_to_piece(token): token for token in range(self.vocab_size)} | self._special

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text, each part between special tokens encoded by itself."""
        ids = [token for part in self._written.split(text) if part for token in self._encode_part(part)]
        return self.build_inputs_with_special_tokens(ids) if add_special_tokens else ids

    def build_inputs_with_special_tokens(self, token_ids: list[int], other_ids: list[int] | None = None) -> list[int]:
        """Return the ids of one or two texts as a prompt begins with them."""
        return [*self._prefix, *token_ids, *(other_ids or ())]

    def decode(
        self, ids: Sequence[int], skip_special_tokens: bool = False, clean_up_tokenization_spaces: bool = False
    ) -> str:
        """Return the text of token ids; bytes that are no whole UTF-8 character become U+FFFD."""
        return "".join(self._texts(ids, skip_special_tokens))

    def _encode_part(self, part: str) -> list[int]:
        if part == "".join(_PREFIX):
            return self._prefix
        if self._written.fullmatch(part):
            return [self._special[part]]
        pieces: list[int] = self.sp_model.encode(part)
        return pieces

    def _texts(self, ids: Sequence[int], skip_special_tokens: bool) -> Iterator[str]:
        for is_text, run in groupby(ids, self._is_text):
            if is_text:
                yield self.sp_model.decode(list(run))
            elif not skip_special_tokens:
                yield from self.convert_ids_to_tokens(list(run))

    def _is_text(self, token: int) -> bool:
        return token < self.vocab_size and not self.sp_model.is_control(token) and not self.sp_model.is_unknown(token)

    def _convert_id_to_token(self, index: int) -> str:
        piece: str = self.sp_model.id_to_piece(index) if index < self.vocab_size else ""
        return piece

    def _convert_token_to_id(self, token: str) -> int:
        number: int = self.sp_model.piece_to_id(token)
        return number
