"""A tiny tokenizer of SentencePiece's unigram kind, in the files that XLM-RoBERTa is published with."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import sentencepiece
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

_ROLES = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", "mask_token": "<mask>"}
_ROLES |= {"cls_token": "<s>", "sep_token": "</s>"}
_SPACE = "\u2581"


def make_pieces(directory: Path, vocab_size: int) -> list[str]:
    """Write ``tokenizer.json`` with pieces of random words, and its settings; return texts of such words.

    ``vocab_size``: tokens with ``<mask>``, which has the last place.
    """
    rng = np.random.default_rng(5)
    words = ["".join(rng.choice(list("abcdeo"), rng.integers(2, 9))) for _ in range(300)]
    texts = [" ".join(rng.choice(words, rng.integers(4, 12))) for _ in range(200)]
    trained = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=trained,
        vocab_size=vocab_size - 2,
        model_type="unigram",
        num_threads=1,
        minloglevel=2,
    )
    model = sentencepiece.SentencePieceProcessor(model_proto=trained.getvalue())
    # Published so: other places for what SentencePiece has first, and <mask> at the end.
    first = [(text, 0.0) for text in ("<s>", "<pad>", "</s>", "<unk>")]
    learned = [(model.id_to_piece(i), model.get_score(i)) for i in range(3, model.vocab_size())]
    tokenizer = Tokenizer(models.Unigram([*first, *learned, ("<mask>", 0.0)], 3, False))
    tokenizer.normalizer = normalizers.Precompiled(_member(_member(trained.getvalue(), 3), 2))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(_SPACE, "always")]
    )
    tokenizer.decoder = decoders.Metaspace(_SPACE, "always")
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in dict.fromkeys(_ROLES.values())])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    # The last two are what llama.cpp's converter reads of white space.
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, **_ROLES, add_prefix_space=True, clean_up_tokenization_spaces=True
    ).save_pretrained(directory)
    return texts


def _member(message: bytes, number: int) -> bytes:
    """Return the last bytes field of this number in a message of Protocol Buffers."""
    found, begin = b"", 0

    def varint() -> int:
        nonlocal begin
        value = shift = 0
        while True:
            byte = message[begin]
            value, begin, shift = value | (byte & 127) << shift, begin + 1, shift + 7
            if byte < 128:
                return value

    while begin < len(message):
        key = varint()
        size = {0: 0, 1: 8, 5: 4}.get(key & 7)
        if key & 7 == 0:
            varint()
        size = varint() if size is None else size
        if key >> 3 == number:
            found = message[begin : begin + size]
        begin += size
    return found
