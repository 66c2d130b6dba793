"""Loading with ``transformers`` without a progress bar in the log."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_bars() -> Iterator[None]:
    """Keep ``transformers`` from drawing bars."""
    from transformers.utils import logging

    had_bar = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if had_bar:
            logging.enable_progress_bar()
