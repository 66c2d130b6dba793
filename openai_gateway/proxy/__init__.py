"""Requests spread over several API servers."""
