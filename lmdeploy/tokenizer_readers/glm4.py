"""GLM-4 and CodeGeeX4, ``ChatGLM4Tokenizer``: ranks in ``tokenizer.model``, added tokens in the settings."""

from typing import Any

from lmdeploy.tokenizer_readers.ranks import as_transformers, byte_pair_encoding, prefixed, read_ranks
from lmdeploy.tokenizer_readers.settings import TokenizerSettings

_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_PREFIX = ("[gMASK]", "<sop>")
_END = "<|endoftext|>"


def read(settings: TokenizerSettings) -> Any:
    """Return the tokenizer, which puts ``[gMASK]`` and ``<sop>`` before every text.

    Raises
    ------
    ValueError
        If the settings do not name these tokens.
    """
    added = settings.added_tokens
    missing = {*_PREFIX, _END} - {token.content for token in added.values()}
    if missing:
        raise ValueError(f"added_tokens_decoder of tokenizer_config.json must list {', '.join(sorted(missing))}")
    tokenizer = byte_pair_encoding(read_ranks(settings.file("tokenizer.model")), _WORDS, added)
    prefixed(tokenizer, _PREFIX)
    return as_transformers(tokenizer, _END)
