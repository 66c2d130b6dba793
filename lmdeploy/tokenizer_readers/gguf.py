"""Tokenizer files from a GGUF file's metadata (github.com/ggml-org/ggml, docs/gguf.md, "Tokenizer").

``gpt2`` is byte-level byte-pair encoding with merges in order; ``llama`` is SentencePiece's, which joins the
neighbours whose joined piece has the highest score and writes what no piece has as bytes; ``gemma4`` is the same with
merges in order; ``bert`` is WordPiece; ``t5`` is SentencePiece's unigram model, as XLM-RoBERTa has it.
"""

import json
import logging
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from lmdeploy.tokenizer_readers.gguf_words import WORDS
from lmdeploy.tokenizer_readers.resolved import ResolvedSettings, write_files

logger = logging.getLogger(__name__)

_KEY = "tokenizer.ggml."
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4  # token_type
_SPACE = "\u2581"
_BYTE_SPACE = "\u0120"  # a space in byte-level vocabularies
_ROLES = {
    "bos": "bos_token",
    "eos": "eos_token",
    "unknown": "unk_token",
    "seperator": "sep_token",
    "padding": "pad_token",
}
# Metadata name one end, published generation settings several. Tokens of these texts end a document, and a response:
_ENDS = {
    "<|endoftext|>", "<|end_of_text|>", "<eos>", "[EOS]", "<\uff5cend\u2581of\u2581sentence\uff5c>",
    "<|return|>", "<|call|>",
}  # fmt: skip
# These end a turn, and with it a response, where the chat template writes them.
_ENDS_OF_TURN = {
    "<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>", "<|end_of_turn|>", "<|endofturn|>", "<|eom_id|>",
    "<turn|>", "<|tool_response>", "[EOT]",
}  # fmt: skip
_HARMONY = ("<|return|>", "<|end|>")  # with the first, the second only ends a message within a response
_REPEATED = "\ufdd0"  # a noncharacter: after the text of a token whose text an earlier token has, which decoders remove


def write_tokenizer(metadata: Mapping[str, Any], target: Path) -> dict[str, Any]:
    """Write ``tokenizer.json``, ``tokenizer_config.json`` and, where there is one, ``chat_template.jinja``.

    And the same for readers without ``transformers`` (``resolved.py``). Raises `ValueError` if there is no tokenizer,
    or one of a kind that is not read, or it contradicts itself. ``target``: an existing folder. Returns content for
    ``generation_config.json``: the tokens that begin a text and end a response.
    """
    kind = metadata.get(f"{_KEY}model")
    if kind not in {"gpt2", "llama", "gemma4", "bert", "t5"}:
        raise ValueError(f"its tokenizer is of the kind {kind!r}; those read are gpt2, llama, gemma4, bert and t5")
    texts = _list(metadata, "tokens", str)
    types = _list(metadata, "token_type", int) if f"{_KEY}token_type" in metadata else [1] * len(texts)
    if len(types) != len(texts):
        raise ValueError(f"its tokenizer has {len(texts)} tokens and {len(types)} types of tokens")
    pieces = (text for text, type_ in zip(texts, types, strict=True) if type_ == _NORMAL and len(text) > 1)
    if kind in {"gpt2", "gemma4"} and not metadata.get(f"{_KEY}merges") and (piece := next(pieces, None)):
        raise ValueError(f"its tokenizer lacks {_KEY}merges, without which no text becomes the token {piece!r}")
    texts, is_repeated = _distinct(texts)
    if kind == "bert":
        texts = [text if type_ == _CONTROL else _word_piece(text) for text, type_ in zip(texts, types, strict=True)]
    roles = _roles(metadata, texts)
    if kind == "gpt2":
        tokenizer, adds_bos = _byte_level(metadata, texts)
    elif kind == "bert":
        tokenizer, adds_bos = _words(metadata, texts, roles.get("unk_token", "[UNK]")), True
    elif kind == "t5":
        tokenizer, adds_bos = _unigram(metadata, texts, types), False
    else:
        tokenizer, adds_bos = _sentencepiece(metadata, texts, roles.get("unk_token"), has_merges=kind == "gemma4"), True
    if is_repeated:
        tokenizer.decoder = decoders.Sequence([decoders.Replace(_REPEATED, ""), tokenizer.decoder])
    _add_tokens(tokenizer, texts, types, strips=metadata.get("general.architecture") == "phi3")
    _add_ends(tokenizer, metadata, roles, adds_bos, kind)
    tokenizer.save(str(target / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **roles}
    (target / "tokenizer_config.json").write_text(json.dumps(settings, indent=1), encoding="utf-8")
    templates = _templates(metadata)
    template = templates["default"] if templates.keys() == {"default"} else templates or None
    ids = {role: tokenizer.token_to_id(text) for role, text in roles.items()}
    special = sorted({token for token in ids.values() if token is not None})
    resolved = ResolvedSettings(ids.get("bos_token"), ids.get("eos_token"), special, roles, template)
    write_files(tokenizer, resolved, target)
    for name, text in templates.items():
        file = target / ("chat_template.jinja" if name == "default" else f"additional_chat_templates/{name}.jinja")
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return _generation(metadata, texts, "".join(templates.values()))


def with_token(metadata: Mapping[str, Any], text: str) -> Mapping[str, Any]:
    """Return metadata whose tokenizer has a control token of this text, after all others if it had none."""
    texts = metadata.get(f"{_KEY}tokens")
    if not text or not isinstance(texts, list) or text in texts:
        return metadata
    types = metadata.get(f"{_KEY}token_type", [1] * len(texts))
    more = {f"{_KEY}tokens": [*texts, text], f"{_KEY}token_type": [*types, _CONTROL]}
    if isinstance(scores := metadata.get(f"{_KEY}scores"), list):
        more[f"{_KEY}scores"] = [*scores, 0.0]
    return {**metadata, **more}


def _templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return the chat templates by name: ``default``, and those of ``tokenizer.chat_template.NAME``."""
    key = "tokenizer.chat_template"
    named = {name.removeprefix(f"{key}."): text for name, text in metadata.items() if name.startswith(f"{key}.")}
    found = {"default": metadata.get(key), **named}
    return {name: text for name, text in found.items() if isinstance(text, str) and text and re.fullmatch(r"\w+", name)}


def _distinct(texts: list[str]) -> tuple[list[str], bool]:
    """Return texts of which each occurs once, since ``tokenizer.json`` has one id for a text, and whether some did not.

    The first of equal tokens is read; all of them write the text.
    """
    if len(set(texts)) == len(texts):
        return texts, False
    seen: Counter[str] = Counter()
    distinct = []
    for text in texts:
        distinct.append(text + seen[text] * _REPEATED)
        seen[text] += 1
    return distinct, True


def _list(metadata: Mapping[str, Any], name: str, kind: type) -> list[Any]:
    values = metadata.get(_KEY + name)
    if not isinstance(values, list) or not all(isinstance(value, kind) for value in values):
        raise ValueError(f"{_KEY}{name} must be a list of {kind.__name__}, got {type(values).__name__}")
    return values


def _roles(metadata: Mapping[str, Any], texts: Sequence[str]) -> dict[str, str]:
    """Return the texts of the tokens that have a role."""
    ids = {role: metadata.get(f"{_KEY}{name}_token_id") for name, role in _ROLES.items()}
    return {role: texts[token] for role, token in ids.items() if isinstance(token, int) and 0 <= token < len(texts)}


def _vocabulary(texts: Sequence[str]) -> dict[str, int]:
    vocabulary: dict[str, int] = {}
    for token, text in enumerate(texts):
        vocabulary.setdefault(text, token)
    return vocabulary


def _byte_level(metadata: Mapping[str, Any], texts: Sequence[str]) -> tuple[Tokenizer, bool]:
    name = metadata.get(f"{_KEY}pre")
    if name is None:
        logger.warning("the GGUF file does not say how its tokenizer cuts words (%spre): as GPT-2's is assumed", _KEY)
        name = "default"
    if name not in WORDS:
        raise ValueError(f"its tokenizer cuts words as {name!r} ({_KEY}pre); those read are {', '.join(WORDS)}")
    words = WORDS[name]
    vocabulary = _vocabulary(texts)
    if _SPACE in vocabulary and _BYTE_SPACE not in vocabulary:
        raise ValueError(
            f"its tokenizer is SentencePiece's, but {_KEY}model says gpt2, by which spaces are not read: convert the "
            "model again"
        )
    pairs = _merges(metadata, vocabulary)
    tokenizer = Tokenizer(models.BPE(vocabulary, pairs, ignore_merges=words.keeps_whole))
    if words.is_composed:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = words.pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, words.adds_bos


def _merges(metadata: Mapping[str, Any], vocabulary: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return the pairs of pieces that make a piece, in the order in which they are joined, as the file lists them."""
    merges = _list(metadata, "merges", str) if f"{_KEY}merges" in metadata else []
    pairs = [merge.partition(" ")[::2] for merge in merges]
    broken = next((pair for pair in pairs if not {*pair, "".join(pair)} <= vocabulary.keys()), None)
    if broken is not None:
        raise ValueError(f"its tokenizer joins {' '.join(broken)!r}, which are not tokens or do not make one")
    return pairs


def _sentencepiece(
    metadata: Mapping[str, Any], texts: Sequence[str], unknown: str | None, *, has_merges: bool
) -> Tokenizer:
    vocabulary = _vocabulary(texts)
    pairs = _merges(metadata, vocabulary) if has_merges else _pairs(vocabulary, _scores(metadata, texts))
    tokenizer = Tokenizer(models.BPE(vocabulary, pairs, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    spaces = normalizers.Replace(" ", _SPACE)
    as_text = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if metadata.get(f"{_KEY}add_space_prefix", True):
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), spaces])
        as_text.append(decoders.Strip(" ", 1, 0))
    else:
        tokenizer.normalizer = spaces
    tokenizer.decoder = decoders.Sequence(as_text)
    return tokenizer


def _unigram(metadata: Mapping[str, Any], texts: Sequence[str], types: Sequence[int]) -> Tokenizer:
    unknown = next((token for token, type_ in enumerate(types) if type_ == _UNKNOWN), None)
    tokenizer = Tokenizer(models.Unigram(list(zip(texts, _scores(metadata, texts), strict=True)), unknown, False))
    charsmap = metadata.get(f"{_KEY}precompiled_charsmap")
    if charsmap:
        tokenizer.normalizer = normalizers.Precompiled(bytes(byte & 0xFF for byte in charsmap))
    scheme = "always" if metadata.get(f"{_KEY}add_space_prefix", True) else "never"
    spaces = pre_tokenizers.Metaspace(_SPACE, scheme)
    tokenizer.pre_tokenizer = (
        pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), spaces])
        if metadata.get(f"{_KEY}remove_extra_whitespaces", False)
        else spaces
    )
    tokenizer.decoder = decoders.Metaspace(_SPACE, scheme)
    return tokenizer


def _scores(metadata: Mapping[str, Any], texts: Sequence[str]) -> list[float]:
    scores = _list(metadata, "scores", float)
    if len(scores) != len(texts):
        raise ValueError(f"its tokenizer has {len(texts)} tokens and {len(scores)} scores")
    return scores


def _word_piece(text: str) -> str:
    """Return a token as WordPiece has it of one as the file has it: there the beginnings of words are marked."""
    return text[1:] if text.startswith(_SPACE) else f"##{text}"


def _words(metadata: Mapping[str, Any], texts: Sequence[str], unknown: str) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(_vocabulary(texts), unk_token=unknown, max_input_chars_per_word=100))
    lowers = bool(metadata.get(f"{_KEY}normalizer.lowercase", True))
    strips = metadata.get(f"{_KEY}normalizer.strip_accents")
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowers, strip_accents=strips)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def _pairs(vocabulary: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Return the pairs of pieces that make a piece, in the order in which they are joined."""
    pairs = [
        (-scores[token], token, text[:cut], text[cut:])
        for text, token in vocabulary.items()
        for cut in range(1, len(text))
        if text[:cut] in vocabulary and text[cut:] in vocabulary
    ]
    return [(left, right) for _, _, left, right in sorted(pairs)]


def _add_tokens(tokenizer: Tokenizer, texts: Sequence[str], types: Sequence[int], *, strips: bool) -> None:
    """Let the tokens that are no pieces of text be found where they are written.

    Phi-3's control tokens take the white space after them, where a model's settings say so (``strips``).
    """
    for text, kind in zip(texts, types, strict=True):
        if not text:
            continue
        if kind in {_CONTROL, _UNKNOWN}:
            rstrip = strips and text.startswith("<|") and text != "<|endoftext|>"
            tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False, rstrip=rstrip)])
        elif kind == _USER_DEFINED:
            tokenizer.add_tokens([AddedToken(text, normalized=False)])


def _add_ends(
    tokenizer: Tokenizer, metadata: Mapping[str, Any], roles: Mapping[str, str], adds_bos: bool, kind: str
) -> None:
    """Put the tokens before and after every text that is encoded with special tokens, and between those of a pair.

    BERT begins no second text, and gives it a token type; XLM-RoBERTa begins it with the token that ends texts.
    """
    end = roles.get("sep_token" if kind == "bert" else "eos_token")
    before = [roles["bos_token"]] if metadata.get(f"{_KEY}add_bos_token", adds_bos) and "bos_token" in roles else []
    adds_end = metadata.get(f"{_KEY}add_eos_token", kind in {"bert", "t5"})
    after = [end] if adds_end and end is not None else []
    second = {"bert": [], "t5": after}.get(kind, before)
    type_ = 0 if kind == "t5" else 1
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[*before, "$A", *after],
        pair=[*before, "$A", *after, *(f"{part}:{type_}" for part in (*second, "$B", *after))],
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in dict.fromkeys([*before, *after])],
    )


def _generation(metadata: Mapping[str, Any], texts: Sequence[str], template: str) -> dict[str, Any]:
    ends = [metadata.get(f"{_KEY}{name}_token_id") for name in ("eos", "eot", "eom")]
    of_turn = {text for text in _ENDS_OF_TURN if text in template}
    if _HARMONY[0] in texts:
        of_turn.discard(_HARMONY[1])
    ends += [token for token, text in enumerate(texts) if text in _ENDS or text in of_turn]
    known = [token for token in dict.fromkeys(ends) if isinstance(token, int) and 0 <= token < len(texts)]
    generation: dict[str, Any] = {"eos_token_id": known[0] if len(known) == 1 else known} if known else {}
    bos = metadata.get(f"{_KEY}bos_token_id")
    return generation | ({"bos_token_id": bos} if isinstance(bos, int) else {})
