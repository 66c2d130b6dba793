"""Validation of browsers' events: each is checked and rebuilt before Gradio sees it.

Gradio takes any object that looks like a file (``{"path": ..., "meta": ...}``), in any field, for one it may read, copy
or download. So text fields take text alone, numbers numbers, and files are those that were uploaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import gradio as gr
from gradio_client.utils import is_valid_file
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import from_json, to_json

from openai_gateway.errors import ApiError
from openai_gateway.parsing import check_size
from webui import uploads
from webui.conversation import MAX_IMAGES

SessionName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
SESSION_NAME: TypeAdapter[str] = TypeAdapter(SessionName)
MAX_SETTING = 2**20  # characters
_READ = {"retry": ("index", "value"), "edit": ("index", "value", "previous_value")}  # what handlers read of an event


class EventRejected(Exception):
    """A body is none of this page's events; the text says why."""


@dataclass(frozen=True)
class Event:
    """One that the page may send."""

    session: str  # name of the browser's session
    number: int  # of Gradio's function
    body: bytes  # JSON text for Gradio
    size: int  # bytes that it makes the page keep: its own, and those of a file that is read


class _Posted(BaseModel):
    """The body of a request; further fields are left out."""

    model_config = ConfigDict(strict=True)

    session_hash: SessionName
    fn_index: int
    event_data: Any = None
    data: list[Any]


def checked(raw: bytes, functions: Mapping[int, Any], *, is_queued: bool) -> Event:
    """Return the event of a request's body, of which every value is one that its component may have.

    Raises `EventRejected` if it is no event, or one that this page never sends. ``raw``: JSON text. ``functions``:
    Gradio's, by number. ``is_queued``: whether it came to the queue.
    """
    posted = _parsed(raw)
    function = functions.get(posted.fn_index)
    if function is None or function.fn is None or bool(function.queue) != is_queued:
        raise EventRejected("The page has no such event here.")
    if len(posted.data) != len(function.inputs):
        raise EventRejected(f"The event has {len(function.inputs)} values, not {len(posted.data)}.")
    posted.data = [_value(component, value) for component, value in zip(function.inputs, posted.data, strict=True)]
    posted.event_data = _event_data([kind for _, kind in function.targets], posted.event_data)
    files = [at for at, component in enumerate(function.inputs) if isinstance(component, gr.UploadButton)]
    try:
        size = len(raw) + sum(Path(posted.data[at]["path"]).stat().st_size for at in files)
    except OSError:
        raise EventRejected("This file is no longer there.") from None
    return Event(posted.session_hash, posted.fn_index, to_json(posted), size)


def _parsed(raw: bytes) -> _Posted:
    try:
        check_size(raw)
        return _Posted.model_validate(from_json(raw, allow_inf_nan=False))
    except ApiError as error:
        raise EventRejected(error.message) from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise EventRejected(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    except ValueError as error:
        raise EventRejected(f"The body is not JSON: {error}") from None


def _value(component: Any, value: Any) -> Any:
    """Return the sanitized value of a component."""
    match component:
        case gr.State():  # kept here, whatever a browser says
            return None
        case gr.Slider():
            is_good = value is None or (isinstance(value, int | float) and not isinstance(value, bool))
        case gr.Textbox() | gr.Radio() | gr.Dropdown():
            is_good = value is None or (isinstance(value, str) and len(value) <= MAX_SETTING)
        case gr.MultimodalTextbox():
            return _question(component, value)
        case gr.UploadButton():
            return _file(value)
        case gr.JSON() | gr.BrowserState():
            is_good = not _names_a_file(value)
        case _:
            is_good = False
    if not is_good:
        raise EventRejected(f"This is no value of a {type(component).__name__}.")
    return value


def _question(component: Any, value: Any) -> dict[str, Any]:
    text, files = (value.get("text"), value.get("files")) if isinstance(value, dict) else (None, None)
    if not isinstance(text, str) or not isinstance(files, list) or len(files) > MAX_IMAGES:
        raise EventRejected(f"A question is a text with at most {MAX_IMAGES} images.")
    images = [_file(file) for file in files]
    if not all(is_valid_file(image["path"], component.file_types) for image in images):
        raise EventRejected("Only images may be shown with a question.")
    return {"text": text, "files": images}


def _file(value: Any) -> dict[str, Any]:
    found = uploads.find(value.get("path")) if isinstance(value, dict) else None
    if found is None:
        raise EventRejected("This file was not uploaded here.")
    return {"path": str(found), "orig_name": found.name, "meta": {"_type": "gradio.FileData"}}


def _names_a_file(value: Any) -> bool:
    """Return whether anything in a value looks like a file to Gradio."""
    if isinstance(value, dict):
        return isinstance(value.get("path"), str) or any(_names_a_file(item) for item in value.values())
    return isinstance(value, list) and any(_names_a_file(item) for item in value)


def _event_data(kinds: Sequence[str], sent: Any) -> dict[str, Any] | None:
    """Return the sanitized data of an event: numbers and texts."""
    names = next((_READ[kind] for kind in kinds if kind in _READ), ())
    if not names:
        return None
    if not isinstance(sent, dict):
        raise EventRejected("The event does not say which message it is about.")
    return {name: value if isinstance(value := sent.get(name), str | int) else None for name in names}
