"""Tokens that are drafted and checked, several a step (docs/speculation.md)."""
