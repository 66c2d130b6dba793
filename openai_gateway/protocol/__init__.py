"""Requests and answers of the HTTP APIs, as pydantic models. Nothing here knows how they are served."""
