"""Reading SentencePiece models, which are protobuf messages, with `transformers`."""

import importlib
import sys


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
