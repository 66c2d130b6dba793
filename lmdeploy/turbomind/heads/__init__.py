"""Heads that checkpoints bring for a model: layers that guess further tokens out of its hidden states."""
