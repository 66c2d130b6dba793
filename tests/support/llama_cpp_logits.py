"""Run by tests in its own process: writes the logits that llama.cpp has after each token of a text.

Usage: SOURCES MODEL TOKENS OUT, where SOURCES is the unpacked source package of llama-cpp-python, TOKENS a JSON list
and OUT gets ``[tokens, vocabulary]`` float32 (``.npy``). ``LLAMA_CPP_LIB_PATH`` says where the library is.
"""

import json
import sys
import types

import numpy as np

sources, model, tokens, out = sys.argv[1:]
sys.path.insert(0, sources)
sys.modules.setdefault("diskcache", types.ModuleType("diskcache"))  # imported, and not used for this

from llama_cpp import Llama  # noqa: E402

ids = json.loads(tokens)
# Keys and values in float32 (0), as they are here.
llm = Llama(model_path=model, n_ctx=len(ids) + 8, n_batch=len(ids), logits_all=True, verbose=True, type_k=0, type_v=0)
llm.eval(ids)
np.save(out, np.asarray(llm.scores[: len(ids)], np.float32))
