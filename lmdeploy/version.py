"""The version of this package."""

__version__ = "0.2.0"
version_info = tuple(int(part) for part in __version__.split(".") if part.isdigit())
