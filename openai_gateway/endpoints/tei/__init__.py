"""Routes of Text Embeddings Inference (TEI): ``/embed``, ``/embed_all``, ``/embed_sparse``, ``/predict``.

Its ``/rerank`` is in `scoring`.
"""
