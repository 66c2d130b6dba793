"""``/v1/files``: what batches read, and what came of them."""
