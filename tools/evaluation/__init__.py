"""What formats of weights and of the KV cache lose; `tools/evaluate.py` is the command line."""
