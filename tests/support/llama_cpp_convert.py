"""Run by tests in a process of its own: llama.cpp's ``convert_hf_to_gguf.py``, for a tokenizer that it does not know.

Usage: SOURCES MODEL OUT TYPE OPTION..., where SOURCES is llama.cpp's folder, MODEL a Hugging Face directory with a
byte-level tokenizer, or of an encoder with words or pieces, OUT the file to write, TYPE its ``--outtype``, and OPTION
another of its options.
"""

import importlib
import json
import runpy
import sys
import types
from pathlib import Path
from typing import Any

sources, model, out, outtype, *options = sys.argv[1:]
sys.path[:0] = [sources, str(Path(sources) / "gguf-py")]
# Imported, and used for SentencePiece's own files alone; it may be made for a newer Protocol Buffers.
sys.modules["sentencepiece.sentencepiece_model_pb2"] = types.ModuleType("sentencepiece_model_pb2")
base: Any = importlib.import_module("conversion.base")  # a module of llama.cpp's sources
for path in sorted((Path(sources) / "conversion").glob("[!_]*.py")):
    importlib.import_module(f"conversion.{path.stem}")

# Encoders that are published with WordPiece, or with SentencePiece.
WITH_OWN = ("BertModel", "JinaBertV2Model", "NomicBertModel", "XLMRobertaModel")


def set_vocab(self: Any) -> None:
    """Write a byte-level tokenizer, whatever the architecture is published with; it needs a merge to be one."""
    tokens, kinds, pre = self.get_vocab_base()
    for index, text in enumerate(
        ("ab", "<unk>", "<s>", "<|endoftext|>", "a", "b"), start=1
    ):  # some are looked up by llama.cpp
        if text not in tokens:
            tokens[-index], kinds[-index] = text, base.gguf.TokenType.NORMAL
    writer = self.gguf_writer
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(["a b"])
    base.gguf.SpecialVocab(self.dir_model, load_merges=False).add_to_gguf(writer)


def load_hparams(directory: Path, *arguments: Any, **options: Any) -> Any:
    """Return a config with the keys that `transformers` no longer reads, without those of its list ``left_out``."""
    raw = json.loads((Path(directory) / "config.json").read_text(encoding="utf-8"))
    whole = load(directory, *arguments, **options) | raw
    return {key: value for key, value in whole.items() if key not in raw.get("left_out", ())}


load = base.ModelBase.load_hparams
base.ModelBase.load_hparams = staticmethod(load_hparams)
base.TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
# Baichuan's converter calls itself without end for all but the joined matrix, and MiniMax's asks for an index of parts.
baichuan, minimax = sys.modules["conversion.baichuan"], sys.modules["conversion.minimax"]
unpack = baichuan.BaichuanModel.modify_tensors
baichuan.BaichuanModel.modify_tensors = lambda self, data, name, bid: (
    unpack(self, data, name, bid)
    if "W_pack" in name
    else super(baichuan.BaichuanModel, self).modify_tensors(data, name, bid)
)
minimax.MiniMaxText01Model._get_suppress_tokens = lambda self: []
classes = [base.TextModel]
while classes:
    converter = classes.pop()
    classes += converter.__subclasses__()
    if converter.__name__ not in WITH_OWN:
        converter.set_vocab = set_vocab
sys.argv = ["convert_hf_to_gguf.py", model, "--outfile", out, "--outtype", outtype, *options]
runpy.run_path(str(Path(sources) / "convert_hf_to_gguf.py"), run_name="__main__")
