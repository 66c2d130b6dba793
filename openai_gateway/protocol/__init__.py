"""Requests and responses of the HTTP APIs, as pydantic models. Nothing here knows how they are served."""
