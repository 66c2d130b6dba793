"""Download of a model from a hub, resumable and checked before use.

``huggingface_hub`` speaks to the hub, and its cache has the files. Where they go depends on the hub's description of
the repository alone, never on the headers of a response: the bytes of an interrupted download are kept for the next
attempt (``blobs/<digest>.part``), and a file that has not the digest which the hub names never gets its place.
Redirects to private addresses, and files that are larger than described, end the download.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import shutil
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from lmdeploy.addresses import ip_address, is_public
from lmdeploy.hub import HubError, HubUnreachableError
from lmdeploy.hub.choice import HubFile, chosen_files
from lmdeploy.hub.names import HubName
from lmdeploy.hub.pulled import PulledModel, default_hub_cache, pulled_models, remember

_CHUNK = 4 * 1024 * 1024  # bytes read at once for a checksum
_PART = ".part"
_SHA256_DIGITS = 64
_DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")  # becomes the name of a file


@dataclass(frozen=True)
class Progress:
    """One step of a download, in the words of Ollama's ``/api/pull``."""

    status: str  # what is being done
    # The file that is downloaded, its checksum, and bytes of it; empty and 0 elsewhere
    file: str = ""
    digest: str = ""
    total: int = 0
    completed: int = 0


Report = Callable[[Progress], None]


def pull(
    records: Path,  # where pulled models are remembered
    # The model, and its version; None: the repository's default
    name: HubName,
    revision: str | None = None,
    # Where the files go; None: where ``huggingface_hub`` keeps them unless another folder is set
    hub_cache: Path | None = None,
    report: Report = lambda progress: None,  # called with each step
    max_bytes: int | None = None,  # the most that all pulled models may have together; None: what the disk holds
) -> PulledModel:
    """Return a model of a hub after what is missing of it was downloaded, and all of it checked.

    Raises `HubError` if there is no such model, the hub cannot be reached, a file is not what the hub promises, or the
    disk is full. The model is as absent, or as whole in an older version, as it was.
    """
    cache_dir = (hub_cache or default_hub_cache()).expanduser().absolute()
    report(Progress("pulling manifest"))
    _reject_private_redirects()
    commit, files = _files(name, revision)
    main, chosen = chosen_files(files, name.which)
    sizes = {file.name: file.size for file in chosen}
    model = PulledModel(name.repository, name.which, revision or "main", commit, str(cache_dir), main, sizes)
    _require_space(model, chosen, records, max_bytes)
    try:
        for file in chosen:
            _fetch(model, file, report)
        report(Progress("verifying sha256 digest"))
        for file in chosen:
            _verify(model, file)
        report(Progress("writing manifest"))
        for file in chosen:  # none has its name in the snapshot before all are there
            _link(model, file)
        remember(records, model)
    except OSError as error:
        raise _of_disk(error, cache_dir) from error
    report(Progress("success"))
    return model


def _files(name: HubName, revision: str | None) -> tuple[str, list[HubFile]]:
    """Return the commit and all files of a version."""
    from huggingface_hub import HfApi, errors

    try:
        info = HfApi().model_info(name.repository, revision=revision, files_metadata=True, timeout=30)
    except errors.GatedRepoError:
        raise HubError("its terms must be accepted on the hub; then set HF_TOKEN to a token of that account") from None
    except errors.RevisionNotFoundError:
        raise HubError(f"the hub has no version {revision!r} of it") from None
    except errors.RepositoryNotFoundError:
        raise HubError("the hub has no such model, or it is private and HF_TOKEN is not set") from None
    except errors.OfflineModeIsEnabled:
        raise HubUnreachableError("HF_HUB_OFFLINE is set, so the hub is not asked") from None
    except HubError:
        raise
    except Exception as error:  # of the HTTP library, which differs between versions
        raise HubUnreachableError(f"the hub cannot be reached ({_first_line(error)})") from error
    found = []
    for file in info.siblings or ():
        digest = (file.lfs.sha256 if file.lfs else file.blob_id) or ""
        if file.size is None or file.size < 0 or not _DIGEST.fullmatch(digest) or _is_outside(file.rfilename):
            raise HubError(f"the hub describes the file {file.rfilename!r} without size, checksum or a path of its own")
        found.append(HubFile(file.rfilename, file.size, digest))
    commit = info.sha or ""
    if not _DIGEST.fullmatch(commit):
        raise HubError("the hub names no commit")
    return commit, found


def _is_outside(name: str) -> bool:
    """Return whether a path of a repository leads out of it."""
    return name.startswith("/") or "\\" in name or ".." in name.split("/") or "\0" in name


def _require_space(model: PulledModel, files: Sequence[HubFile], records: Path, max_bytes: int | None) -> None:
    missing = sum(file.size - _bytes_on_disk(model, file) for file in files)
    if max_bytes is not None:
        others = [pulled for pulled in pulled_models(records) if pulled.name != model.name]
        begun = sum(part.stat().st_size for part in Path(model.hub_cache).glob(f"models--*/blobs/*{_PART}"))
        used = sum(other.size for other in others) + begun
        if used + model.size > max_bytes:
            raise HubError(
                f"it takes {_shown(model.size)}, and models that were pulled have {_shown(used)} of the "
                f"{_shown(max_bytes)} that they may have; remove one first"
            )
    cache_dir = Path(model.hub_cache)
    there = next(folder for folder in (cache_dir, *cache_dir.parents) if folder.exists())
    free = shutil.disk_usage(there).free
    if missing > free:
        raise HubError(f"{_shown(missing)} are missing of it, and {there} has {_shown(free)} free")


def _bytes_on_disk(model: PulledModel, file: HubFile) -> int:
    """Return how many bytes of a file are there already."""
    blob = _blob(model, file)
    for path in (blob, blob.with_name(blob.name + _PART)):
        with contextlib.suppress(OSError):
            return min(path.stat().st_size, file.size)
    return 0


def _blob(model: PulledModel, file: HubFile) -> Path:
    return model.folder / "blobs" / file.digest


def _fetch(model: PulledModel, file: HubFile, report: Report) -> None:
    """Bring a file's bytes into the hub's cache."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    blob = _blob(model, file)
    steps = _Steps(Progress(f"pulling {file.digest[:12]}", file.name, _named(file.digest), file.size), report)
    with _interruptions_of(file):
        if not blob.exists():
            url = hf_hub_url(model.repository, file.name, revision=model.commit)
            _fetch_bytes(url, blob, file, steps, _chunks_of(get_hf_file_metadata(url)))
    steps.end()


def _link(model: PulledModel, file: HubFile) -> None:
    """Give a file whose bytes are there its name in the snapshot."""
    link = model.snapshot / file.name
    target = os.path.relpath(_blob(model, file), link.parent)
    if link.is_symlink() and str(link.readlink()) == target:
        return
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(target)


@contextlib.contextmanager
def _interruptions_of(file: HubFile) -> Iterator[None]:
    """Make what ends a download a `HubError`, but for what the disk is to blame for."""
    try:
        yield
    except HubError:
        raise
    except Exception as error:  # of the HTTP library, which differs between versions
        if isinstance(error, OSError) and error.errno is not None and not isinstance(error, ConnectionError):
            raise
        raise HubError(
            f"the download of {file.name} was interrupted ({_first_line(error)}); what is there is kept: try again"
        ) from error


def _reject_private_redirects() -> None:
    """Have ``huggingface_hub`` ask its hub, wherever that is, and public hosts only."""
    from huggingface_hub import constants
    from huggingface_hub.utils._http import default_client_factory, set_client_factory

    def check(request: Any) -> None:
        host = request.url.host
        if request.url.netloc.decode() == urlsplit(constants.ENDPOINT).netloc:
            return
        for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM):
            address = ip_address(str(found[4][0]))
            if address is None or not is_public(address):
                raise HubError(f"the hub redirects to {host}, which is in a private network")

    def client() -> Any:
        made = default_client_factory()
        made.event_hooks["request"].append(check)
        return made

    set_client_factory(client)


def _chunks_of(metadata: Any) -> Any:
    """Return where a store with its own protocol has a file; None where it does not, or cannot be asked."""
    from importlib.util import find_spec

    return getattr(metadata, "xet_file_data", None) if find_spec("hf_xet") else None


def _fetch_bytes(url: str, blob: Path, file: HubFile, steps: _Steps, chunks: Any) -> None:
    """Download a file to its place among the blobs, going on where an earlier attempt ended."""
    from huggingface_hub.file_download import http_get, xet_get
    from huggingface_hub.utils._headers import build_hf_headers

    part = blob.with_name(blob.name + _PART)
    part.parent.mkdir(parents=True, exist_ok=True)
    with _locked(part, file) as target:
        try:
            if target.seek(0, os.SEEK_END) > file.size:
                target.truncate(0)
            begun = target.tell()
            steps.add(begun)
            options = {"headers": build_hf_headers(), "expected_size": file.size, "tqdm_class": steps.bar()}
            if chunks is not None:
                steps.add(-begun)  # it begins again
                xet_get(incomplete_path=part, xet_file_data=chunks, **options)
            else:
                http_get(url, target, resume_size=begun, **options)
            target.flush()
            os.fsync(target.fileno())
        except (HubError, OSError) as error:
            if isinstance(error, HubError) or error.errno in (errno.ENOSPC, errno.EDQUOT):
                part.unlink(missing_ok=True)  # gives the space back
            raise
        if _digest(part, file.digest) != file.digest:
            part.unlink()
            raise HubError(_mismatch(file))
        part.rename(blob)


@contextlib.contextmanager
def _locked(part: Path, file: HubFile) -> Iterator[BinaryIO]:
    """Open a file that one process at a time appends to."""
    with part.open("ab") as target:
        try:
            fcntl.flock(target, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise HubError(f"{file.name} is being downloaded by another process") from None
        yield target


def _verify(model: PulledModel, file: HubFile) -> None:
    """Compare a file with its checksum; one that differs is removed, wherever it came from."""
    blob = _blob(model, file)
    if blob.stat().st_size != file.size or _digest(blob, file.digest) != file.digest:
        (model.snapshot / file.name).unlink(missing_ok=True)
        blob.unlink(missing_ok=True)
        raise HubError(_mismatch(file))


def _digest(path: Path, like: str) -> str:
    """Return a file's checksum of the kind that a digest is."""
    if len(like) == _SHA256_DIGITS:
        found = hashlib.sha256()
    else:
        found = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            found.update(chunk)
    return found.hexdigest()


def _named(digest: str) -> str:
    return f"{'sha256' if len(digest) == _SHA256_DIGITS else 'sha1'}:{digest}"


def _mismatch(file: HubFile) -> str:
    return f"{file.name} has not the checksum that the hub names ({_named(file.digest)}); it was removed: try again"


def _of_disk(error: OSError, path: Path) -> HubError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return HubError(f"the disk of {path} is full; what was begun is removed")
    return HubError(f"it cannot be written to {path} ({error.strerror or error})")


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _shown(count: int) -> str:
    return f"{count / 1e9:.2f} GB"


class _Steps:
    """Reports how much of a file is there, about a hundred times."""

    def __init__(self, at: Progress, report: Report) -> None:
        self._at = at
        self._report = report
        self._completed = 0
        self._reported = -1

    def add(self, count: int) -> None:
        """Count bytes that came; fewer than none are taken back."""
        self._completed = max(0, self._completed + count)
        if self._completed > self._at.total:
            raise HubError(f"{self._at.file} is larger than the {self._at.total} bytes that the hub names")
        if self._reported < 0 or abs(self._completed - self._reported) * 100 >= self._at.total:
            self._send(self._completed)

    def end(self) -> None:
        """Report that all of it is there."""
        if self._reported != self._at.total:
            self._send(self._at.total)

    def _send(self, completed: int) -> None:
        self._reported = completed
        at = self._at
        self._report(Progress(at.status, at.file, at.digest, at.total, completed))

    def bar(self) -> Any:
        """Return a class of progress bars, as ``huggingface_hub`` makes and updates them, that report here."""
        from tqdm import tqdm

        steps = self

        class Bar(tqdm):  # type: ignore[misc]  # it has no types
            def __init__(self, *args: Any, **options: Any) -> None:
                super().__init__(*args, **options | {"disable": True})

            def update(self, n: float | None = 1) -> bool | None:
                steps.add(int(n or 0))
                return None

        return Bar
