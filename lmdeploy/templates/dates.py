"""The day, for chat templates that tell the model of it."""

import datetime


def today(layout: str) -> str:
    """Return the local date in a layout of ``strftime``."""
    return datetime.date.today().strftime(layout)
