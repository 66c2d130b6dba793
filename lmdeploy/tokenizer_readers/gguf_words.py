"""Pre-tokenizers of byte-level GGUF tokenizers, by ``tokenizer.ggml.pre``.

Each is what the ``tokenizer.json`` of the models has that llama.cpp gives the name to (``convert_hf_to_gguf_update.py``
lists them).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Regex, pre_tokenizers

from lmdeploy.tokenizer_readers.ranks import KIMI_WORDS

_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_CL100K = _ENDINGS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_ONE_DIGIT = _CL100K.replace(r"\p{N}{1,3}", r"\p{N}")
# Marks are parts of words.
_WITH_COMBINING = _ONE_DIGIT.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]")
_SEED = _ONE_DIGIT.replace(r"[^\s\p{L}\p{N}]+[\r\n]*", r"[^\s\p{L}\p{N}\r\n]+")
_LING = _ONE_DIGIT.replace(r"\s*[\r\n]+", r"\s*[\r\n]")
_BEGINNING = r"[^\r\n\p{L}\p{N}]?"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (f"{_BEGINNING}{_UPPER}*{_LOWER}+", f"{_BEGINNING}{_UPPER}+{_LOWER}*")
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = "|".join([*_CASED, r"\p{N}"]) + _REST
_DEEPSEEK3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
)
# DeepSeek-LLM's: letters that have cases, punctuation in ASCII and in full width, and CJK.
_CASED_LETTERS = r"\s?[\p{Lu}\p{Ll}\p{Lt}]+"
_PUNCTUATION = "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"
_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
_O200K = "|".join([*(f"{word}{_ENDINGS}?" for word in _CASED), r"\p{N}{1,3}"]) + _REST


@dataclass(frozen=True)
class Words:
    """How a text becomes words."""

    pattern: str = ""  # regular expression of the words; empty: GPT-2's
    before: tuple[Any, ...] = ()  # what cuts the text before that
    after: tuple[Any, ...] = ()  # what cuts the words further
    is_composed: bool = False  # whether characters are composed first (Unicode NFC)
    keeps_whole: bool = False  # a word that is a token is that token, whether or not merges lead there
    adds_bos: bool = False  # whether texts begin with a bos token where metadata do not say

    @property
    def pre_tokenizer(self) -> Any:
        """The steps of the ``tokenizers`` library."""
        if not self.pattern:
            steps = [*self.before, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True), *self.after]
        else:
            split = pre_tokenizers.Split(Regex(self.pattern), "isolated")
            steps = [*self.before, split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        return steps[0] if len(steps) == 1 else pre_tokenizers.Sequence(steps)


_GPT2 = Words()
_DIGITS = Words(before=(pre_tokenizers.Digits(individual_digits=True),))
_LLAMA3 = Words(_CL100K, keeps_whole=True, adds_bos=True)
_QWEN2 = Words(_ONE_DIGIT, is_composed=True)


def _steps(*patterns: str) -> tuple[Any, ...]:
    """Return steps that each cut what a pattern matches out of its surroundings."""
    return tuple(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns)


_FALCON = Words(
    before=(pre_tokenizers.Punctuation("contiguous"),),
    after=(pre_tokenizers.Digits(individual_digits=False), *_steps("[0-9][0-9][0-9]")),
)
_DEEPSEEK_V3 = Words(_DEEPSEEK3, before=_steps(r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"))
_DEEPSEEK_LLM = Words(r"\p{N}", before=_steps(r"[\r\n]", _CASED_LETTERS, _PUNCTUATION, r"\s+$", _CJK))
_DEEPSEEK_CODER = Words(r"\p{N}", before=_steps(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK))
_THOUSANDS = r"\d{1,3}(?=(?:\d{3})*\b)"
_NAMES: Sequence[tuple[Words, str]] = (
    (_GPT2, "default gpt-2 gpt2 phi-2 mpt olmo jais gigachat exaone4 a.x-4.0 trillion granite-docling"),
    (Words(is_composed=True), "modern-bert"),
    (_DIGITS, "smollm starcoder refact codeshell command-r exaone minerva-7b"),
    (_LLAMA3, "llama3 llama-v3 llama-bpe falcon3 falcon-h1 lfm2 pixtral midm-2.0"),
    (Words(_CL100K), "dbrx smaug-bpe chatglm-bpe"),
    (Words(_CL100K, keeps_whole=True), "glm4 glm5"),
    (Words(_WITH_COMBINING, is_composed=True), "qwen35"),
    (_QWEN2, "qwen2 deepseek-r1-qwen stablelm2 megrez hunyuan kormo"),
    (_FALCON, "falcon"),
    (Words(_TEKKEN, keeps_whole=True, adds_bos=True), "tekken"),
    (Words(_SEED), "seed-coder"),
    (Words(_LING), "bailingmoe bailingmoe2"),
    (Words(KIMI_WORDS), "kimi-k2"),
    (_DEEPSEEK_V3, "deepseek-v3 hunyuan-dense joyai-llm"),
    (Words(_O200K), "gpt-4o llama4 minimax-m2 kanana2"),
    (Words(_O200K, before=_steps(_THOUSANDS)), "tiny_aya"),
    (Words(_CL100K.replace("{1,3}", "+"), before=_steps(r"\p{N}{1,3}"), keeps_whole=True), "minicpm5"),
    (_DEEPSEEK_LLM, "deepseek-llm"),
    (_DEEPSEEK_CODER, "deepseek-coder"),
    (Words(_BLOOM), "bloom poro-chat gpt3-finnish"),
    (Words(r"\p{N}", before=_steps(_BLOOM)), "viking"),
)
WORDS = {name: words for words, names in _NAMES for name in names.split()}
