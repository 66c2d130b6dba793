"""``/v1/embeddings``: what a model makes of texts, as vectors."""
