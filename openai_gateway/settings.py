"""Settings of one gateway, and their defaults."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_PORT = 23333
DEFAULT_TRITON_ADDRESS = "localhost:8001"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a gateway needs to know.

    Attributes
    ----------
    triton_address : str
        ``host:port`` of Triton's gRPC service.
    model_name : str, optional
        The id clients use; None: the name the engine reports.
    max_body_bytes : int
        A longer request body is refused with 413.
    allow_origins : tuple of str
        Origins that browsers may call from; empty: no CORS headers.
    """

    triton_address: str = DEFAULT_TRITON_ADDRESS
    model_name: str | None = None
    max_body_bytes: int = 8 * 1024 * 1024
    allow_origins: tuple[str, ...] = ("*",)
