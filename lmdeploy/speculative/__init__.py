"""Tokens that are drafted and checked, several a step (docs/guides/speculative-decoding.md)."""
