"""SentencePiece tokenizer with special tokens, as families publish it as code."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from sentencepiece import SentencePieceProcessor
from tokenizers import AddedToken
from transformers import PreTrainedTokenizer


class PieceTokenizer(PreTrainedTokenizer):  # type: ignore[misc]
    """Encodes each part of a text between tags by itself, with the SentencePiece model."""

    def __init__(
        self,
        model: SentencePieceProcessor,  # the SentencePiece model
        added: Mapping[int, AddedToken],  # tokens alongside its pieces, or in their place, by id
        written: Mapping[str, Sequence[int]],  # what stands for tokens where it is written in a text, and for which
        prefix: Sequence[int],  # tokens put before every text that is encoded with special tokens
        **settings: Any,  # of ``transformers``: ``bos_token``, ``eos_token``, ``chat_template``
    ) -> None:
        self.sp_model = model
        self._added = dict(added)
        self._ids = {text: list(ids) for text, ids in written.items()}
        self._prefix = list(prefix)
        longest_first = sorted(written, key=len, reverse=True)
        self._written = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")") if written else None
        super().__init__(added_tokens_decoder=dict(added), **settings)

    @property
    def vocab_size(self) -> int:
        """The pieces of the SentencePiece model."""
        size: int = self.sp_model.get_piece_size()
        return size

    def get_vocab(self) -> dict[str, int]:
        """Return the id of each piece and of each added token."""
        pieces = {self.sp_model.id_to_piece(token): token for token in range(self.vocab_size)}
        return pieces | {token.content: number for number, token in self._added.items()}

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text."""
        parts = self._written.split(text) if self._written else [text]
        ids = [token for part in parts if part for token in self._ids.get(part) or self.sp_model.encode(part)]
        return self.build_inputs_with_special_tokens(ids) if add_special_tokens else ids

    def build_inputs_with_special_tokens(self, token_ids: list[int], other_ids: list[int] | None = None) -> list[int]:
        """Return the ids of one or two texts as a prompt begins with them."""
        return [*self._prefix, *token_ids, *(other_ids or ())]

    def decode(
        self, ids: Sequence[int], skip_special_tokens: bool = False, clean_up_tokenization_spaces: bool = False
    ) -> str:
        """Return the text of token ids; bytes that are no whole UTF-8 character become U+FFFD."""
        return "".join(self._texts(ids, skip_special_tokens))

    def _texts(self, ids: Sequence[int], skip_special_tokens: bool) -> Iterator[str]:
        for is_piece, run in groupby(ids, self._is_piece):
            if is_piece:
                yield self.sp_model.decode(list(run))
            else:
                shown = [token for token in run if not (skip_special_tokens and self._is_special(token))]
                yield from self.convert_ids_to_tokens(shown)

    def _is_piece(self, token: int) -> bool:
        return token < self.vocab_size and token not in self._added_tokens_decoder and not self._is_special(token)

    def _is_special(self, token: int) -> bool:
        if token in self._added_tokens_decoder:
            return bool(self._added_tokens_decoder[token].special)
        if token >= self.vocab_size:
            return False
        return bool(self.sp_model.is_control(token) or self.sp_model.is_unknown(token))

    def _convert_id_to_token(self, index: int) -> str:
        piece: str = self.sp_model.id_to_piece(index) if index < self.vocab_size else ""
        return piece

    def _convert_token_to_id(self, token: str) -> int:
        number: int = self.sp_model.piece_to_id(token)
        return number
