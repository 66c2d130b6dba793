"""What is in the engine's block cache, published to routers in vLLM's format (docs/deployment/operations.md)."""
