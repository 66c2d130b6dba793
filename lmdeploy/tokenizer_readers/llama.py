"""Tokenizers of Llama's kind: a SentencePiece model, and added tokens that ``tokenizer_config.json`` lists."""

import importlib
import sys
from typing import Any

from lmdeploy.tokenizer_readers.settings import TokenizerSettings


def read(settings: TokenizerSettings) -> Any:
    """Return the tokenizer of a ``tokenizer.model``, as ``transformers`` reads Llama's."""
    from transformers import LlamaTokenizer

    make_sentencepiece_readable()
    return LlamaTokenizer.from_pretrained(str(settings.directory), local_files_only=True)


def make_sentencepiece_readable() -> None:
    """Let ``transformers`` read SentencePiece models whatever protobuf is installed.

    The sentencepiece wheel's generated protobuf code refuses a protobuf older than its generator, which Triton's
    client may need. ``transformers`` carries the same code from an older generator, but tries the wheel's only.
    """
    name = "sentencepiece.sentencepiece_model_pb2"
    try:
        importlib.import_module(name)
    except Exception:  # protobuf's VersionError is a bare Exception
        sys.modules[name] = importlib.import_module("transformers.utils.sentencepiece_model_pb2_new")
