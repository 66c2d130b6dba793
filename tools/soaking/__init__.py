"""Parts that `tools/soak.py` and `tests/abuse` share: callers of all kinds, and a look at the server."""
