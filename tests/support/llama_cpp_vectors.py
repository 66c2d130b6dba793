"""Run by tests in its own process: writes the vectors that llama.cpp makes of texts.

Usage: SOURCES MODEL TEXTS OUT [LABELS], where SOURCES is the unpacked source package of llama-cpp-python, TEXTS a JSON
list of texts or of lists of token ids, and OUT gets ``[texts, hidden size]`` float32 (``.npy``), of length 1; with
LABELS, of a classifier, the numbers ``[texts, LABELS]`` that it makes.
"""

import json
import sys
import types

import numpy as np

sources, model, texts, out, *labels = sys.argv[1:]
sys.path.insert(0, sources)
sys.modules.setdefault("diskcache", types.ModuleType("diskcache"))  # imported, and not used for this

from llama_cpp import LLAMA_POOLING_TYPE_RANK, LLAMA_POOLING_TYPE_UNSPECIFIED, Llama  # noqa: E402

kind = LLAMA_POOLING_TYPE_RANK if labels else LLAMA_POOLING_TYPE_UNSPECIFIED
sizes = {"n_ctx": 512, "n_batch": 512, "n_ubatch": 512}
llm = Llama(model_path=model, embedding=True, verbose=True, pooling_type=kind, **sizes)
if labels:
    llm.n_embd = lambda: int(labels[0])
tokenize, vectors = llm.tokenize, []
for text in json.loads(texts):
    llm.tokenize = tokenize if isinstance(text, str) else lambda *_, ids=text, **__: ids
    vectors.append(llm.embed(text if isinstance(text, str) else "", normalize=not labels))
np.save(out, np.asarray(vectors, np.float32))
