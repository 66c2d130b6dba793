"""The processes that serve: uvicorn, TLS, several workers on a port, the place at a proxy."""
