"""Qwen 1, ``QWenTokenizer``: ranks in ``qwen.tiktoken``, special tokens whose texts and ids its code holds."""

import json
from typing import Any

from tokenizers import AddedToken, normalizers

from lmdeploy.tokenizer_readers.ranks import as_transformers, byte_pair_encoding, read_ranks
from lmdeploy.tokenizer_readers.settings import TokenizerSettings

_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_END = "<|endoftext|>"
_SPECIAL = (_END, "<|im_start|>", "<|im_end|>", *(f"<|extra_{number}|>" for number in range(205)))
_FIRST_SPECIAL = 151643
# Of Qwen-VL, after those: what it says of places in an image, and what stands for images.
_PLACES = ("<ref>", "</ref>", "<box>", "</box>", "<quad>", "</quad>")
_IMAGES = ("<img>", "</img>", "<imgpad>")


def read(settings: TokenizerSettings) -> Any:
    """Return the tokenizer; texts are brought into Unicode's form NFC."""
    texts = _SPECIAL + (_PLACES + _IMAGES if _sees(settings) else ())
    added = {
        _FIRST_SPECIAL + i: AddedToken(text, special=text not in _PLACES, normalized=False)
        for i, text in enumerate(texts)
    }
    tokenizer = byte_pair_encoding(read_ranks(settings.file("qwen.tiktoken")), _WORDS, added)
    tokenizer.normalizer = normalizers.NFC()
    return as_transformers(tokenizer, _END)


def _sees(settings: TokenizerSettings) -> bool:
    """Return whether the model alongside the tokenizer is a Qwen-VL, whose tokenizer has the same name."""
    file = settings.directory / "config.json"
    return file.is_file() and "visual" in json.loads(file.read_text(encoding="utf-8"))
