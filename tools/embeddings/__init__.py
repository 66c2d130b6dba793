"""A real embedding model, for tests, guides and measurements."""
