"""Conversion of a checkpoint's tokenizer files to a ``transformers`` tokenizer, without running code of theirs.

``tokenizer.json``, and SentencePiece models of known kinds, are read by ``transformers`` itself. What a family
publishes as Python code is read here, by a function for each kind, chosen by the name of the class.
"""

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lmdeploy.tokenizer_readers.settings import TokenizerSettings, read_object


def read_tokenizer(directory: Path) -> Any:
    """Return the ``transformers`` tokenizer of a directory.

    Raises `ValueError` if it is code of the checkpoint that is not known here, and `OSError` if files are missing.
    Broken ones raise what the library that reads them does.
    """
    settings = TokenizerSettings.read(directory)
    tokenizer = _described(settings) if (directory / "tokenizer.json").is_file() else _built(settings)
    tokenizer.chat_template = settings.chat_template
    return tokenizer


def _described(settings: TokenizerSettings) -> Any:
    """Return the tokenizer of ``tokenizer.json``, which needs no code of the checkpoint."""
    from transformers import PreTrainedTokenizerFast

    directory = settings.directory
    try:
        tokenizer = _auto(settings)
        # The class that a model's name leads to may be SentencePiece's, which makes no bytes of byte-level pieces.
        decoder = tokenizer.backend_tokenizer.decoder
        if decoder is not None and b'"ByteLevel"' in decoder.__getstate__():
            return tokenizer
        if '"ByteLevel"' not in json.dumps(read_object(directory / "tokenizer.json").get("decoder")):
            return tokenizer
    except ValueError:
        if not settings.custom_class:
            raise
    return PreTrainedTokenizerFast.from_pretrained(str(directory), local_files_only=True)


def _built(settings: TokenizerSettings) -> Any:
    """Return the tokenizer that a class builds of other files."""
    reader = _readers().get(settings.custom_class or settings.class_name)
    if reader is not None:
        return reader(settings)
    if settings.custom_class:
        raise ValueError(
            f"it is code of the checkpoint, {settings.custom_class}, which is not run: "
            "save the tokenizer as tokenizer.json (PreTrainedTokenizerFast)"
        )
    _make_sentencepiece_readable()
    return _auto(settings)


def _readers() -> dict[str, Callable[[TokenizerSettings], Any]]:
    """Return the readers of tokenizer files, by the class's name."""
    from lmdeploy.tokenizer_readers import custom_code

    return {
        "BaichuanTokenizer": custom_code.internlm_read,
        "ChatGLM4Tokenizer": custom_code.glm4_read,
        "ChatGLMTokenizer": custom_code.chatglm_read,
        "InternLM2Tokenizer": custom_code.internlm_read,
        "InternLMTokenizer": custom_code.internlm_read,
        "QWenTokenizer": custom_code.qwen_read,
        "TikTokenTokenizer": custom_code.kimi_read,
    }


def _auto(settings: TokenizerSettings) -> Any:
    from transformers import AutoConfig, AutoTokenizer, PretrainedConfig

    directory = settings.directory
    given: Any = {"local_files_only": True, "trust_remote_code": False}
    config: Any = None
    try:
        config = AutoConfig.from_pretrained(str(directory), **given)
    except OSError:
        pass  # there is none, and `AutoTokenizer` does without
    except Exception:  # a config.json that is invalid for `transformers` is no fault of the tokenizer
        raw = read_object(directory / "config.json")
        config = PretrainedConfig(tokenizer_class=raw.get("tokenizer_class"))
        config.model_type = raw.get("model_type", "")
    return AutoTokenizer.from_pretrained(str(directory), config=config, **given, **settings.without_empty)


def _make_sentencepiece_readable() -> None:
    """Let ``transformers`` read SentencePiece models whatever protobuf is installed.

    The sentencepiece wheel's generated protobuf code refuses a protobuf older than its generator, which Triton's
    client may need. ``transformers`` carries the same code from an older generator, but tries the wheel's only.
    """
    name = "sentencepiece.sentencepiece_model_pb2"
    try:
        importlib.import_module(name)
    except Exception:  # protobuf's VersionError is a bare Exception
        sys.modules[name] = importlib.import_module("transformers.utils.sentencepiece_model_pb2_new")
