"""Commands about vision-language models."""
