"""What clients of Text Embeddings Inference (TEI) ask: ``/embed``, ``/embed_all``, ``/embed_sparse``, ``/predict``.

Its ``/rerank`` is in `scoring`.
"""
