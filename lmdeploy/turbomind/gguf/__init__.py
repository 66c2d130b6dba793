"""GGUF files (llama.cpp's format) as checkpoints.

``unpacked.py`` makes an ordinary checkpoint directory of a file: config, tokenizer and chat template out of its
metadata, and links to the file or its parts, whose weights the C++ engine reads where they are.
"""
