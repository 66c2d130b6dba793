"""What is in the engine's block cache, asked to routers as vLLM reports it (docs/deployment/operations.md)."""
