"""OpenAI's HTTP API in front of the models Triton serves. It owns no tokenizer and no chat template."""
