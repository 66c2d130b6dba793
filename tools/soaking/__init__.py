"""What `tools/soak.py` and `tools/profile_isolation.py` share: callers of all kinds, and a look at the server."""
