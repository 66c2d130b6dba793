"""``/embed`` and ``/predict``, as clients of Text Embeddings Inference (TEI) ask; its ``/rerank`` is in `scoring`."""
