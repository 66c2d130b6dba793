"""Given as ``PytorchEngineConfig(custom_module_map=...)``."""

MODULE_MAP = {}

MODULE_MAP.update({"LlamaForCausalLM": "own_llama.LlamaForCausalLM"})
