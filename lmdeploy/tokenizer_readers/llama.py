"""Meta's ``tokenizer.model``: a SentencePiece model up to Llama 2, ranks since Llama 3."""

import json
import shutil
from pathlib import Path

from tokenizers import AddedToken

from lmdeploy.tokenizer_readers.ranks import byte_pair_encoding, prefixed, read_ranks

_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPECIAL_COUNT = 256
_NAMED = {
    0: "<|begin_of_text|>", 1: "<|end_of_text|>", 4: "<|finetune_right_pad_id|>", 6: "<|start_header_id|>",
    7: "<|end_header_id|>", 8: "<|eom_id|>", 9: "<|eot_id|>", 10: "<|python_tag|>",
}  # fmt: skip
LLAMA3_ENDS = (1, 8, 9)  # which of the special tokens end a response


def is_ranks(path: Path) -> bool:
    """Return whether a ``tokenizer.model`` is a list of ranks, not a SentencePiece model."""
    with path.open("rb") as file:
        words = file.readline(200).split()
    return len(words) == 2 and words[1].isdigit()


def write_llama2(model_dir: Path, target: Path) -> None:
    """Write the tokenizer files for a SentencePiece model."""
    shutil.copyfile(model_dir / "tokenizer.model", target / "tokenizer.model")
    tokens = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    settings = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, **tokens}
    (target / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def write_llama3(model_dir: Path, target: Path) -> None:
    """Write the tokenizer files for ranks; after them come 256 special tokens."""
    from transformers import PreTrainedTokenizerFast

    ranks = read_ranks(model_dir / "tokenizer.model")
    first = len(ranks)
    reserved = (f"<|reserved_special_token_{number}|>" for number in range(_SPECIAL_COUNT))
    texts = [_NAMED.get(offset) or next(reserved) for offset in range(_SPECIAL_COUNT)]
    added = {first + i: AddedToken(text, special=True, normalized=False) for i, text in enumerate(texts)}
    tokenizer = byte_pair_encoding(ranks, _WORDS, added)
    prefixed(tokenizer, texts[:1])
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=texts[0], eos_token=texts[1]).save_pretrained(target)
