"""What is in the engine's block cache, told to routers as vLLM tells it (docs/operations.md)."""
