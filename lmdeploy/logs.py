"""Logging configuration of all processes: lines of text, or a JSON object a line."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime, timezone

FORMATS = ("text", "json")
REQUEST_ID: ContextVar[str] = ContextVar("lmdeploy_request_id", default="")
"""The request that is being handled; empty outside of one."""

_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def configure(level: str, log_format: str = "text") -> None:
    """Set up this process's root logger, unless it is set up.

    ``level``: one of Python's logging levels. ``log_format``: one of `FORMATS`.
    """
    Stopping.is_json = log_format == "json"
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if log_format == "json" else logging.Formatter(_TEXT))
    logging.basicConfig(level=level, handlers=[handler])


class Stopping:
    """Shutdown message of a server: printed once on stderr, where its command has begun it.

    ``is_json``: it is a line of a JSON log.
    """

    is_json = False
    _is_due = False

    @classmethod
    def begin(cls) -> None:
        """Let the next request to stop be announced."""
        cls._is_due = True

    @classmethod
    def announce(cls) -> None:
        """Announce it; from a signal's handler too, which may not use Python's buffers."""
        if cls._is_due:
            cls._is_due = False
            text = "stopping ..."
            if cls.is_json:
                record = logging.makeLogRecord({"name": __name__, "levelname": "INFO", "msg": text})
                text = JsonFormatter().format(record)
            behind = "\n" if os.isatty(2) else ""  # the terminal's ^C
            os.write(2, f"{behind}{text}\n".encode())


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON, with the ids of the request and of the trace that it belongs to."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "process": record.process,
            "message": record.getMessage(),
        }
        if request_id := REQUEST_ID.get():
            line["request_id"] = request_id
        line |= _trace_ids()
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def _trace_ids() -> dict[str, str]:
    """Return the ids of the span that is open here; empty where nothing is traced."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return {}
    context = trace.get_current_span().get_span_context()
    return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"} if context.is_valid else {}


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
