"""A form with a file, read as it comes: the file goes to the disk, never as a whole into memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePosixPath

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from openai_gateway.batches.files import Upload
from openai_gateway.batches.requests import MAX_LINES
from openai_gateway.errors import ApiError

_MAX_FIELD = 4096  # bytes
_MAX_PARTS = 16
_MAX_NAME = 255  # characters of a file's name


class FileForm:
    """A body of ``multipart/form-data`` (RFC 7578) with one file, called ``file``, and short fields.

    Parameters
    ----------
    content_type
        Of the request.
    begin
        Called where the file begins.
    max_bytes
        Of the file.

    Raises
    ------
    ApiError
        The request has no such body; so do the methods.

    Attributes
    ----------
    fields
        The short fields, by name.
    upload, filename
        The file, once it has begun.
    """

    def __init__(self, content_type: str, begin: Callable[[], Upload], max_bytes: int) -> None:
        kind, options = parse_options_header(content_type)
        if kind != b"multipart/form-data" or not options.get(b"boundary"):
            raise ApiError(400, "The request body must be a form with a file, sent as multipart/form-data.")
        self.fields: dict[str, str] = {}
        self.upload: Upload | None = None
        self.filename = ""
        self._begin = begin
        self._max_bytes = max_bytes
        self._parts = 0
        self._is_whole = False
        self._name = ""
        self._value = bytearray()
        self._header = [bytearray(), bytearray()]
        self._disposition = b""
        self._parser = MultipartParser(
            options[b"boundary"],
            {
                "on_part_begin": self._on_part_begin,
                "on_header_field": lambda data, start, end: self._header[0].extend(data[start:end]),
                "on_header_value": lambda data, start, end: self._header[1].extend(data[start:end]),
                "on_header_end": self._on_header_end,
                "on_headers_finished": self._on_headers_finished,
                "on_part_data": self._on_part_data,
                "on_part_end": self._on_part_end,
                "on_end": self._on_end,
            },
        )

    def feed(self, body: bytes) -> None:
        """Read on. Raises `QuotaError` and `OSError` too, as `Upload.write`."""
        try:
            self._parser.write(body)
        except FormParserError as error:
            raise ApiError(400, f"The request body is not a proper form: {error}") from None

    def finish(self) -> Upload:
        """Return the file, when everything has been read."""
        if not self._is_whole:
            raise ApiError(400, "The request body ends before the form does.")
        if self.upload is None:
            raise ApiError(400, "file is required", param="file", code="missing_required_parameter")
        return self.upload

    def _on_part_begin(self) -> None:
        self._parts += 1
        if self._parts > _MAX_PARTS:
            raise ApiError(400, f"The form must have at most {_MAX_PARTS} fields.")
        self._disposition = b""
        self._value.clear()

    def _on_header_end(self) -> None:
        field, value = self._header
        if field.lower() == b"content-disposition":
            self._disposition = bytes(value)
        self._header = [bytearray(), bytearray()]

    def _on_headers_finished(self) -> None:
        _, options = parse_options_header(self._disposition)
        self._name = options.get(b"name", b"").decode(errors="replace")
        if self._name != "file":
            return
        if self.upload is not None:
            raise ApiError(400, "The form must have one file, got two.", param="file")
        given = options.get(b"filename", b"").decode(errors="replace")
        self.filename = PurePosixPath(given.replace("\\", "/")).name[:_MAX_NAME] or "file"
        self.upload = self._begin()

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._name != "file":
            self._value.extend(data[start:end])
            if len(self._value) > _MAX_FIELD:
                raise ApiError(400, f"A field of the form must be at most {_MAX_FIELD} bytes long.")
        elif self.upload is not None:
            self.upload.write(data[start:end])
            if self.upload.size > self._max_bytes:
                raise ApiError(413, f"A file must be at most {self._max_bytes} bytes long.", param="file")
            if self.upload.lines > MAX_LINES:
                message = f"A file must have at most {MAX_LINES} lines, blank ones among them."
                raise ApiError(400, message, param="file")

    def _on_part_end(self) -> None:
        if self._name != "file":
            self.fields[self._name] = self._value.decode(errors="replace")

    def _on_end(self) -> None:
        self._is_whole = True
