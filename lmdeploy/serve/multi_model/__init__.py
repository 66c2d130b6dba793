"""Several models on one tritonserver: what is wanted, what it takes of the memory, and what is served now."""
