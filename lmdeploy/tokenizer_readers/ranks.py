"""Rank-based byte-pair encoding, the format of ``tiktoken``: a file with a line for each token, ``base64 rank``.

A token's rank is its id, and how early two neighbours become that token: of all pairs of neighbours in a word, the one
that makes the token of the lowest rank is joined first.
"""

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from lmdeploy.token_bytes import byte_level_alphabet

Ranks = dict[bytes, int]

# Words of Kimi K2, which GGUF files name, too.
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]", r"\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]"
_ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
KIMI_WORDS = "|".join(
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


def read_ranks(path: Path) -> Ranks:
    """Return the rank of each token, by its bytes.

    Raises `ValueError` if a line is anything else than ``base64 rank``; names it.
    """
    ranks: Ranks = {}
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if not line:
            continue
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except ValueError as error:
            raise ValueError(
                f"{path.name}: line {number} must be a token in base64 and a rank, got {line!r}"
            ) from error
    return ranks


def byte_pair_encoding(ranks: Ranks, pattern: str, added: Mapping[int, AddedToken]) -> Tokenizer:
    """Return the tokenizer that joins bytes by rank.

    ``ranks``: of every token but the added ones; all 256 bytes are among them. ``pattern``: regular expression of the
    words, which are encoded each by itself. ``added``: further tokens by id. Where one is written in a text it is that
    token.
    """
    char_of = {byte: char for char, byte in byte_level_alphabet().items()}
    text_of = {token: "".join(char_of[byte] for byte in token) for token in ranks}
    vocab = {text_of[token]: rank for token, rank in ranks.items()}
    vocab |= {token.content: number for number, token in added.items()}
    merges = [(text_of[left], text_of[right]) for left, right in _merges(ranks)]
    # A word that is a token as a whole is that token, whether or not merges lead there.
    tokenizer = Tokenizer(models.BPE(vocab, merges, ignore_merges=True))
    words = pre_tokenizers.Split(Regex(pattern), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([token for _, token in sorted(added.items())])
    return tokenizer


def prefixed(tokenizer: Tokenizer, prefix: Sequence[str]) -> None:
    """Let a tokenizer put tokens before every text that is encoded with special tokens."""
    ids = [(token, tokenizer.token_to_id(token)) for token in prefix]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[*prefix, "$A"], pair=[*prefix, "$A", "$B"], special_tokens=ids
    )


def as_transformers(tokenizer: Tokenizer, end: str) -> Any:
    """Return the ``transformers`` tokenizer of one; ``end`` is the token that ends a text."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=end)


def _merges(ranks: Ranks) -> list[tuple[bytes, bytes]]:
    """Return every pair of tokens that make a token, in the order in which pairs are joined."""
    pairs = [
        (rank, ranks[token[:cut]], ranks[token[cut:]], token, cut)
        for token, rank in ranks.items()
        for cut in range(1, len(token))
        if token[:cut] in ranks and token[cut:] in ranks
    ]
    return [(token[:cut], token[cut:]) for _, _, _, token, cut in sorted(pairs)]
