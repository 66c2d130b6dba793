"""Inference in this process: prompts in, responses out, over the engine that Triton hosts."""
