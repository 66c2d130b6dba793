"""How much a machine can serve of a model, from sizes alone (docs/deployment/capacity.md)."""
