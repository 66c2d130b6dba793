"""Structured output, measured: formats (``python -m tools.bench structured``) and real schemas (``calls``)."""
