"""Run by tests in a process of its own: prints the tokens that llama.cpp makes of texts, as a JSON list.

Usage: SOURCES MODEL TEXTS, where SOURCES is the unpacked source package of llama-cpp-python, MODEL a file of which the
tokenizer is read, and TEXTS a JSON list. ``LLAMA_CPP_LIB_PATH`` says where the library is.
"""

import json
import sys
import types

sources, model, texts = sys.argv[1:]
sys.path.insert(0, sources)
sys.modules.setdefault("diskcache", types.ModuleType("diskcache"))  # imported, and not used for this

from llama_cpp import Llama  # noqa: E402

llm = Llama(model_path=model, vocab_only=True, verbose=False)
print(json.dumps([llm.tokenize(text.encode(), add_bos=False, special=True) for text in json.loads(texts)]))
