"""Current date for chat templates."""

import datetime


def today(layout: str) -> str:
    """Return the local date and time in a layout of ``strftime``."""
    return datetime.datetime.now().strftime(layout)
