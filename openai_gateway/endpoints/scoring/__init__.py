"""``/v1/rerank``, ``/v1/score``, ``/v1/classify`` and ``/v1/pooling``: what a model's head, or its vectors, say."""
