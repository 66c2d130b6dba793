"""A hub of Hugging Face's kind on this machine: repositories in memory, and connections that break on demand."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from tests.support.http_host import QuietHandler, serving

LARGE = (".safetensors", ".gguf", ".bin")  # what Git LFS holds


@dataclass
class FakeHub:
    """Repositories, and the requests for their files.

    ``files``: content of each file, by repository and path. ``cut_after``: bytes of a body after which the connection
    is closed, by path: of the next request, then of later ones. ``wrong``: what is sent in a file's place, by path: of
    its length. ``headers``: sent with a file, by path; a ``Location`` redirects. ``sizes``: what the hub says a file
    has, by path; others have their own. ``requests``: paths of requested files, with the first requested byte.
    """

    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    commit: str = "a" * 40
    cut_after: dict[str, list[int]] = field(default_factory=dict)
    wrong: dict[str, bytes] = field(default_factory=dict)
    headers: dict[str, dict[str, str]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    requests: list[tuple[str, int]] = field(default_factory=list)
    url: str = ""

    def described(self, repository: str) -> dict[str, Any]:
        """Return the hub's description of a repository."""
        siblings = []
        for name, content in self.files[repository].items():
            size = self.sizes.get(name, len(content))
            entry: dict[str, Any] = {"rfilename": name, "size": size, "blobId": git_digest(content)}
            if name.endswith(LARGE):
                entry["lfs"] = {"sha256": digest_of(name, content), "size": size, "pointerSize": 134}
            siblings.append(entry)
        return {"id": repository, "modelId": repository, "sha": self.commit, "private": False, "siblings": siblings}

    def listed(self, repository: str) -> list[dict[str, Any]]:
        """Return the same as the hub lists a folder."""
        return [
            {"type": "file", "path": entry["rfilename"], "size": entry["size"], "oid": entry["blobId"]}
            | ({"lfs": entry["lfs"] | {"oid": entry["lfs"]["sha256"]}} if "lfs" in entry else {})
            for entry in self.described(repository)["siblings"]
        ]


def git_digest(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def digest_of(name: str, content: bytes) -> str:
    return hashlib.sha256(content).hexdigest() if name.endswith(LARGE) else git_digest(content)


@contextmanager
def running_hub(files: Mapping[str, Mapping[str, bytes]]) -> Iterator[FakeHub]:
    """Serve repositories on a free port."""
    hub = FakeHub({repository: dict(content) for repository, content in files.items()})

    class Handler(QuietHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.answer(with_body=False)

        def do_GET(self) -> None:
            self.answer(with_body=True)

        def answer(self, *, with_body: bool) -> None:
            path = unquote(urlsplit(self.path).path)
            about = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path)
            if about:
                self.describe(about[1], about[2])
                return
            listed = re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/.+", path)
            if listed:
                self.respond(json.dumps(hub.listed(listed[1])).encode(), {"Content-Type": "application/json"})
                return
            found = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
            content = hub.files.get(found[1], {}).get(found[3]) if found and found[2] == hub.commit else None
            if found is None or content is None:
                self.respond_error("EntryNotFound")
                return
            self.send_file(found[3], content, with_body=with_body)

        def describe(self, repository: str, revision: str | None) -> None:
            if repository not in hub.files:
                self.respond_error("RepoNotFound")
            elif revision not in (None, "main", hub.commit):
                self.respond_error("RevisionNotFound")
            else:
                self.respond(json.dumps(hub.described(repository)).encode(), {"Content-Type": "application/json"})

        def send_file(self, name: str, content: bytes, *, with_body: bool) -> None:
            digest = digest_of(name, content)
            headers = {"ETag": f'"{digest}"', "X-Repo-Commit": hub.commit, "Accept-Ranges": "bytes"}
            if name.endswith(LARGE):
                headers |= {"X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(len(content))}
            headers |= hub.headers.get(name, {})
            if "Location" in headers and with_body:
                self.respond(b"", headers, 302)
                return
            range_header = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
            begin = int(range_header[1]) if range_header else 0
            if range_header:
                headers["Content-Range"] = f"bytes {begin}-{len(content) - 1}/{len(content)}"
            if with_body:
                hub.requests.append((name, begin))
            body = hub.wrong.get(name, content)[begin:]
            cuts = hub.cut_after.get(name) if with_body else None
            cut = cuts.pop(0) if cuts else None
            self.respond(body, headers, 206 if range_header else 200, with_body=with_body, cut=cut)

        def respond(
            self,
            body: bytes,
            headers: Mapping[str, str],
            status: int = 200,
            *,
            with_body: bool = True,
            cut: int | None = None,
        ) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if not with_body:
                return
            self.wfile.write(body if cut is None else body[:cut])
            if cut is not None:
                self.wfile.flush()
                self.close_connection = True

        def respond_error(self, code: str) -> None:
            self.respond(b"{}", {"X-Error-Code": code}, 404)

    with serving(Handler) as hub.url:
        yield hub


def use_hub(hub: FakeHub, patch: pytest.MonkeyPatch) -> None:
    """Have ``huggingface_hub``, which reads its environment when it is imported, ask a hub of ours, without waiting."""
    from huggingface_hub import constants, file_download

    patch.setattr(constants, "ENDPOINT", hub.url)
    patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}")
    patch.setattr(constants, "HF_HUB_OFFLINE", False)
    patch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 10_000)  # what is held back before it is written
    patch.setattr(file_download.time, "sleep", lambda seconds: None)
    for name in ("HF_HUB_OFFLINE", "HF_TOKEN"):
        patch.delenv(name, raising=False)
