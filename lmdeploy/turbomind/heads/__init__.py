"""Heads that checkpoints bring for a model: layers that draft further tokens out of its hidden states."""
