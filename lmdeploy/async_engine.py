"""Documented import path of ``AsyncEngine``."""

from lmdeploy.offline.async_engine import AsyncEngine

__all__ = ["AsyncEngine"]
