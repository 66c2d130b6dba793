"""The documented place to import ``AsyncEngine`` from."""

from lmdeploy.offline.async_engine import AsyncEngine

__all__ = ["AsyncEngine"]
