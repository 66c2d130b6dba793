"""Streaming parser of a multipart upload: the file goes to the disk, never as a whole into memory."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, MultipartState, parse_options_header

from openai_gateway.batches.records import SECONDS_KEPT, FileObject
from openai_gateway.batches.requests import MAX_LINES
from openai_gateway.batches.store import Owned
from openai_gateway.endpoints.files.protocol import FileFields
from openai_gateway.errors import ApiError

_MAX_FIELD = 4096  # bytes
_MAX_PARTS = 16
_MAX_NAME = 255  # characters of a file's name
_UNCHECKED = 8 * 1024 * 1024  # bytes that are written between two looks at all that the owner has


class FileForm:
    """A body of ``multipart/form-data`` (RFC 7578) with one file, called ``file``, and short fields.

    Raises `ApiError` if the request has no such body. So do the methods, which raise `QuotaError` where the owner would
    have too much, and `OSError` where the file cannot be written.
    """

    def __init__(self, content_type: str, owned: Owned, max_bytes: int) -> None:
        kind, options = parse_options_header(content_type)
        if kind != b"multipart/form-data" or not options.get(b"boundary"):
            raise ApiError(400, "The request body must be a form with a file, sent as multipart/form-data.")
        self._owned = owned
        self._max_bytes = max_bytes
        self._path: Path | None = None
        self._file: BinaryIO | None = None
        self._filename = ""
        self._size = self._lines = self._checked = self._parts = 0
        self._fields: dict[str, str] = {}
        self._name = ""
        self._value = bytearray()
        self._header = [bytearray(), bytearray()]
        self._disposition = b""
        self._parser = MultipartParser(
            options[b"boundary"],
            {
                "on_header_field": lambda data, start, end: self._header[0].extend(data[start:end]),
                "on_header_value": lambda data, start, end: self._header[1].extend(data[start:end]),
                "on_header_end": self._on_header_end,
                "on_headers_finished": self._on_headers_finished,
                "on_part_data": self._on_part_data,
                "on_part_end": self._on_part_end,
            },
        )

    def feed(self, body: bytes) -> None:
        """Read on."""
        try:
            self._parser.write(body)
        except FormParserError as error:
            raise ApiError(400, f"The request body is not a proper form: {error}") from None

    def finish(self) -> FileObject:
        """Keep the file, when everything has been read."""
        if self._parser.state != MultipartState.END:
            raise ApiError(400, "The request body ends before the form does.")
        if self._path is None or self._file is None:
            raise ApiError(400, "file is required", param="file", code="missing_required_parameter")
        expires = FileFields.read(self._fields).expires_after
        if self._size == 0:
            raise ApiError(400, "The file must not be empty.", param="file")
        self._file.flush()
        os.fsync(self._file.fileno())
        made = self._owned.keep(self._path.name, self._filename, expires.seconds if expires else SECONDS_KEPT)
        self._path = None
        return made

    def close(self) -> None:
        """Close the file, and remove it where it is not kept."""
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _on_header_end(self) -> None:
        field, value = map(bytes, self._header)
        if field.lower() == b"content-disposition":
            self._disposition = value
        self._header = [bytearray(), bytearray()]

    def _on_headers_finished(self) -> None:
        self._parts += 1
        if self._parts > _MAX_PARTS:
            raise ApiError(400, f"The form must have at most {_MAX_PARTS} fields.")
        _, options = parse_options_header(self._disposition)
        self._disposition = b""
        self._name = options.get(b"name", b"").decode(errors="replace")
        if self._name != "file":
            return
        if self._path is not None:
            raise ApiError(400, "The form must have one file, got two.", param="file")
        given = options.get(b"filename", b"").decode(errors="replace")
        self._filename = PurePosixPath(given.replace("\\", "/")).name[:_MAX_NAME] or "file"
        self._path = self._owned.new_file()
        self._file = self._path.open("wb")

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        part = data[start:end]
        if self._name != "file" or self._file is None:
            self._value += part
            if len(self._value) > _MAX_FIELD:
                raise ApiError(400, f"A field of the form must be at most {_MAX_FIELD} bytes long.")
            return
        self._file.write(part)
        self._size += len(part)
        self._lines += part.count(b"\n")
        if self._size > self._max_bytes:
            raise ApiError(413, f"A file must be at most {self._max_bytes} bytes long.", param="file")
        if self._lines > MAX_LINES:
            raise ApiError(400, f"A file must have at most {MAX_LINES} lines, blank ones among them.", param="file")
        if self._size - self._checked > _UNCHECKED:
            self._file.flush()
            self._owned.require_room()
            self._checked = self._size

    def _on_part_end(self) -> None:
        if self._name != "file":
            self._fields[self._name] = self._value.decode(errors="replace")
            self._value.clear()
