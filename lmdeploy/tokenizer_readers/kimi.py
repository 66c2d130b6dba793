"""Kimi K2, ``TikTokenTokenizer``: ranks in ``tiktoken.model``, special tokens after them, named in the settings."""

from typing import Any

from tokenizers import AddedToken

from lmdeploy.tokenizer_readers.ranks import as_transformers, byte_pair_encoding, read_ranks
from lmdeploy.tokenizer_readers.settings import TokenizerSettings

_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]", r"\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]"
_ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
WORDS = "|".join(
    (
        r"[\p{Han}]+",
        rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+{_ENDING}",
        rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*{_ENDING}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
_SPECIAL_COUNT = 258


def read(settings: TokenizerSettings) -> Any:
    """Return the tokenizer; special tokens that the settings do not name are ``<|reserved_token_N|>``."""
    ranks = read_ranks(settings.file("tiktoken.model"))
    named = settings.added_tokens
    added = {
        number: named.get(number) or AddedToken(f"<|reserved_token_{number}|>", special=True, normalized=False)
        for number in range(len(ranks), len(ranks) + _SPECIAL_COUNT)
    }
    return as_transformers(byte_pair_encoding(ranks, WORDS, added), settings.token("eos_token") or "[EOS]")
