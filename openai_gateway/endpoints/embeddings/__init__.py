"""``/v1/embeddings``, ``/v1/rerank`` and ``/v1/score``: what a model makes of texts, as vectors and compared."""
