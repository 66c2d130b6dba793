"""Calls of tools, end to end."""
