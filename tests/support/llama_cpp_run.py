"""Run by tests in a process of its own: what llama.cpp makes of texts.

Usage: KIND SOURCES MODEL TEXTS [OUT [LABELS]], where SOURCES is the unpacked source package of llama-cpp-python and
TEXTS a JSON list. ``LLAMA_CPP_LIB_PATH`` says where the library is. KIND is one of

* ``tokens``: prints the tokens of texts as a JSON list; of MODEL the tokenizer alone is read.
* ``logits``: TEXTS are tokens; OUT gets the logits after each of them, ``[tokens, vocabulary]`` float32 (``.npy``).
* ``vectors``: of texts or lists of tokens; OUT gets ``[texts, hidden size]`` float32, of length 1; with LABELS, of a
  classifier, the numbers ``[texts, LABELS]`` that it makes.
"""

import json
import sys
import types

import numpy as np

kind, sources, model, given, *rest = sys.argv[1:]
sys.path.insert(0, sources)
sys.modules.setdefault("diskcache", types.ModuleType("diskcache"))  # imported, and not used for this

from llama_cpp import LLAMA_POOLING_TYPE_RANK, LLAMA_POOLING_TYPE_UNSPECIFIED, Llama  # noqa: E402

texts = json.loads(given)
if kind == "tokens":
    llm = Llama(model_path=model, vocab_only=True, verbose=False)
    print(json.dumps([llm.tokenize(text.encode(), add_bos=False, special=True) for text in texts]))
elif kind == "logits":
    # Keys and values in float32 (0), as they are here.
    sizes = {"n_ctx": len(texts) + 8, "n_batch": len(texts), "type_k": 0, "type_v": 0}
    llm = Llama(model_path=model, logits_all=True, verbose=True, **sizes)
    llm.eval(texts)
    np.save(rest[0], np.asarray(llm.scores[: len(texts)], np.float32))
else:
    out, *labels = rest
    pooling = LLAMA_POOLING_TYPE_RANK if labels else LLAMA_POOLING_TYPE_UNSPECIFIED
    sizes = {"n_ctx": 512, "n_batch": 512, "n_ubatch": 512}
    llm = Llama(model_path=model, embedding=True, verbose=True, pooling_type=pooling, **sizes)
    if labels:
        llm.n_embd = lambda: int(labels[0])
    tokenize, vectors = llm.tokenize, []
    for text in texts:
        llm.tokenize = tokenize if isinstance(text, str) else lambda *_, ids=text, **__: ids
        vectors.append(llm.embed(text if isinstance(text, str) else "", normalize=not labels))
    np.save(out, np.asarray(vectors, np.float32))
