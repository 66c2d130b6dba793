"""How many of a model's tool calls can be used: ``python -m tools.tool_calls``."""
