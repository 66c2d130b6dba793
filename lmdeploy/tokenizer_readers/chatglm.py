"""ChatGLM 2 and 3, ``ChatGLMTokenizer``: a SentencePiece model, and special tokens after its vocabulary."""

from typing import Any

from sentencepiece import SentencePieceProcessor
from tokenizers import AddedToken

from lmdeploy.tokenizer_readers.pieces import PieceTokenizer
from lmdeploy.tokenizer_readers.settings import TokenizerSettings

_CHATGLM2 = ("[MASK]", "[gMASK]", "[sMASK]", "sop", "eop")
_CHATGLM3 = (*_CHATGLM2, "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>")
_PREFIX = ("[gMASK]", "sop")


def read(settings: TokenizerSettings) -> Any:
    """Return the tokenizer, which puts ``[gMASK]`` and ``sop`` before every text.

    Both generations publish the same files; one names itself ChatGLM2, or it is ChatGLM3.

    Special tokens written in a text become those tokens. ``sop`` and ``eop`` look like parts of words: ``sop`` is one
    after ``[gMASK]`` only, where chat templates write it, ``eop`` never.
    """
    model = SentencePieceProcessor(model_file=str(settings.file("tokenizer.model")))
    is_chatglm2 = "chatglm2" in str(settings.content.get("name_or_path", "")).lower()
    special = {text: model.get_piece_size() + i for i, text in enumerate(_CHATGLM2 if is_chatglm2 else _CHATGLM3)}
    prefix = [special[text] for text in _PREFIX]
    return PieceTokenizer(
        model,
        {number: AddedToken(text, special=True, normalized=False) for text, number in special.items()},
        {text: [number] for text, number in special.items() if not text.isalpha()} | {"".join(_PREFIX): prefix},
        prefix,
        eos_token=model.id_to_piece(model.eos_id()),
    )
