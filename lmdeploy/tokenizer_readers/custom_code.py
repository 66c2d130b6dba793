"""Tokenizers published as Python code, which is never executed."""

import json
from typing import Any

from sentencepiece import SentencePieceProcessor
from tokenizers import AddedToken, normalizers

from lmdeploy.tokenizer_readers.pieces import PieceTokenizer
from lmdeploy.tokenizer_readers.ranks import KIMI_WORDS, as_transformers, byte_pair_encoding, prefixed, read_ranks
from lmdeploy.tokenizer_readers.settings import TokenizerSettings

# ChatGLM 2 and 3, ``ChatGLMTokenizer``: a SentencePiece model, and special tokens after its vocabulary.
_CHATGLM2 = ("[MASK]", "[gMASK]", "[sMASK]", "sop", "eop")
_CHATGLM3 = (*_CHATGLM2, "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>")
_CHATGLM_PREFIX = ("[gMASK]", "sop")


def chatglm_read(settings: TokenizerSettings) -> Any:
    """Return the tokenizer, which puts ``[gMASK]`` and ``sop`` before every text.

    Both generations publish the same files; one names itself ChatGLM2, or it is ChatGLM3.

    Special tokens written in a text become those tokens. ``sop`` and ``eop`` look like parts of words: ``sop`` is one
    after ``[gMASK]`` only, where chat templates write it, ``eop`` never.
    """
    model = SentencePieceProcessor(model_file=str(settings.file("tokenizer.model")))
    is_chatglm2 = "chatglm2" in str(settings.content.get("name_or_path", "")).lower()
    special = {text: model.get_piece_size() + i for i, text in enumerate(_CHATGLM2 if is_chatglm2 else _CHATGLM3)}
    prefix = [special[text] for text in _CHATGLM_PREFIX]
    return PieceTokenizer(
        model,
        {number: AddedToken(text, special=True, normalized=False) for text, number in special.items()},
        {text: [number] for text, number in special.items() if not text.isalpha()} | {"".join(_CHATGLM_PREFIX): prefix},
        prefix,
        eos_token=model.id_to_piece(model.eos_id()),
    )


# GLM-4 and CodeGeeX4, ``ChatGLM4Tokenizer``: ranks in ``tokenizer.model``, added tokens in the settings.
_GLM4_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_GLM4_PREFIX = ("[gMASK]", "<sop>")
_GLM4_END = "<|endoftext|>"


def glm4_read(settings: TokenizerSettings) -> Any:
    """Return the tokenizer, which puts ``[gMASK]`` and ``<sop>`` before every text.

    Raises `ValueError` if the settings do not name these tokens.
    """
    added = settings.added_tokens
    missing = {*_GLM4_PREFIX, _GLM4_END} - {token.content for token in added.values()}
    if missing:
        raise ValueError(f"added_tokens_decoder of tokenizer_config.json must list {', '.join(sorted(missing))}")
    tokenizer = byte_pair_encoding(read_ranks(settings.file("tokenizer.model")), _GLM4_WORDS, added)
    prefixed(tokenizer, _GLM4_PREFIX)
    return as_transformers(tokenizer, _GLM4_END)


# InternLM, InternLM2 and Baichuan: a SentencePiece model, and tokens that ``tokenizer_config.json`` adds to it.
def internlm_read(settings: TokenizerSettings) -> Any:
    """Return the tokenizer, which puts bos before every text unless the settings say otherwise.

    Raises `ValueError` if the settings name a token that neither they nor the model have.
    """
    model = SentencePieceProcessor(model_file=str(settings.file("tokenizer.model")))
    added = settings.added_tokens
    ids = {model.id_to_piece(token): token for token in range(model.get_piece_size()) if model.is_control(token)}
    ids |= {token.content: number for number, token in added.items()}
    bos, eos = (_token(settings, model, role, ids) for role in ("bos_token", "eos_token"))
    return PieceTokenizer(
        model,
        added,
        {text: [number] for text, number in ids.items()},
        [ids[bos]] if bos is not None and settings.content.get("add_bos_token", True) else [],
        bos_token=bos,
        eos_token=eos,
    )


def _token(settings: TokenizerSettings, model: Any, role: str, ids: dict[str, int]) -> str | None:
    """Return the text of the token with a role, as the settings or else the model name it; None if neither does."""
    text = settings.token(role)
    if text and text not in ids:
        raise ValueError(f"{role} of tokenizer_config.json must be a special token, got {text!r}")
    number = {"bos_token": model.bos_id(), "eos_token": model.eos_id()}[role]
    return text or (model.id_to_piece(number) if number >= 0 else None)


# Kimi K2, ``TikTokenTokenizer``: ranks in ``tiktoken.model``, special tokens after them, named in the settings.
_KIMI_SPECIAL_COUNT = 258


def kimi_read(settings: TokenizerSettings) -> Any:
    """Return the tokenizer; special tokens that the settings do not name are ``<|reserved_token_N|>``."""
    ranks = read_ranks(settings.file("tiktoken.model"))
    named = settings.added_tokens
    added = {
        number: named.get(number) or AddedToken(f"<|reserved_token_{number}|>", special=True, normalized=False)
        for number in range(len(ranks), len(ranks) + _KIMI_SPECIAL_COUNT)
    }
    return as_transformers(byte_pair_encoding(ranks, KIMI_WORDS, added), settings.token("eos_token") or "[EOS]")


# Qwen 1, ``QWenTokenizer``: ranks in ``qwen.tiktoken``, special tokens whose texts and ids its code holds.
_QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN_END = "<|endoftext|>"
_SPECIAL = (_QWEN_END, "<|im_start|>", "<|im_end|>", *(f"<|extra_{number}|>" for number in range(205)))
_FIRST_SPECIAL = 151643
# Of Qwen-VL, after those: what it says of places in an image, and what stands for images.
_GROUNDING_TAGS = ("<ref>", "</ref>", "<box>", "</box>", "<quad>", "</quad>")
_IMAGES = ("<img>", "</img>", "<imgpad>")


def qwen_read(settings: TokenizerSettings) -> Any:
    """Return the tokenizer; texts are brought into Unicode's form NFC."""
    texts = _SPECIAL + (_GROUNDING_TAGS + _IMAGES if _sees(settings) else ())
    added = {
        _FIRST_SPECIAL + i: AddedToken(text, special=text not in _GROUNDING_TAGS, normalized=False)
        for i, text in enumerate(texts)
    }
    tokenizer = byte_pair_encoding(read_ranks(settings.file("qwen.tiktoken")), _QWEN_WORDS, added)
    tokenizer.normalizer = normalizers.NFC()
    return as_transformers(tokenizer, _QWEN_END)


def _sees(settings: TokenizerSettings) -> bool:
    """Return whether the model alongside the tokenizer is a Qwen-VL, whose tokenizer has the same name."""
    file = settings.directory / "config.json"
    return file.is_file() and "visual" in json.loads(file.read_text(encoding="utf-8"))
