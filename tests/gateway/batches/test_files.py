"""Files, with OpenAI's own client: kept, listed, read and deleted by who made them, and nobody else."""

import codecs
import io
import os
import time
from pathlib import Path

import httpx
import openai
import pytest

from openai_gateway.batches.requests import MAX_LINES, MAX_REQUESTS, BatchRequests, count_requests
from openai_gateway.batches.store import Limits, Store
from openai_gateway.settings import Settings
from tests.gateway.batches.conftest import LIMITS, contents, jsonl, request
from tests.support.work import calls_made_by

CONTENT = jsonl(request("a"), request("b"))


def upload(client: openai.OpenAI, content: bytes = CONTENT, name: str = "requests.jsonl") -> openai.types.FileObject:
    return client.files.create(file=(name, content), purpose="batch")


def test_a_file_comes_back_as_it_was_and_is_gone_when_it_is_deleted(ann: openai.OpenAI) -> None:
    made = upload(ann)
    assert (made.bytes, made.filename, made.purpose, made.status) == (
        len(CONTENT),
        "requests.jsonl",
        "batch",
        "processed",
    )
    assert made.expires_at is not None
    assert 0 <= made.expires_at - time.time() - 29 * 86400 <= 86400
    assert ann.files.retrieve(made.id) == made
    assert ann.files.content(made.id).read() == CONTENT
    deleted = ann.files.delete(made.id)
    assert (deleted.id, deleted.deleted) == (made.id, True)
    for gone in (ann.files.retrieve, ann.files.content, ann.files.delete):
        with pytest.raises(openai.NotFoundError, match="There is no file"):
            gone(made.id)


def test_files_are_listed_newest_first_in_pages(ann: openai.OpenAI) -> None:
    ids = [upload(ann, name=f"{number}").id for number in range(5)]
    assert [file.id for file in ann.files.list()] == ids[::-1]
    assert [file.id for file in ann.files.list(order="asc", purpose="batch")] == ids
    assert [file.id for file in ann.files.list(purpose="batch_output")] == []
    page = ann.files.list(limit=2)
    assert [file.id for file in page.data] == ids[:2:-1]
    assert page.has_more
    assert [file.id for file in page] == ids[::-1]  # the client turns the pages


def test_what_belongs_to_another_key_is_not_there(ann: openai.OpenAI, bob: openai.OpenAI) -> None:
    made = upload(ann)
    batch = ann.batches.create(input_file_id=made.id, endpoint="/v1/chat/completions", completion_window="24h")
    assert bob.files.list().data == []
    assert bob.batches.list().data == []
    for hidden in (bob.files.retrieve, bob.files.content, bob.files.delete):
        with pytest.raises(openai.NotFoundError, match="There is no file"):
            hidden(made.id)
    for closed in (bob.batches.retrieve, bob.batches.cancel):
        with pytest.raises(openai.NotFoundError, match="There is no batch"):
            closed(batch.id)
    with pytest.raises(openai.BadRequestError, match="There is no file"):
        bob.batches.create(input_file_id=made.id, endpoint="/v1/chat/completions", completion_window="24h")
    assert ann.files.content(made.id).read() == CONTENT


def test_a_key_has_this_many_bytes_and_this_many_files(ann: openai.OpenAI, bob: openai.OpenAI) -> None:
    first = upload(ann, b"x" * 250_000)
    with pytest.raises(openai.PermissionDeniedError, match="400000 bytes; delete some first"):
        upload(ann, b"y" * 250_000)
    assert [file.id for file in ann.files.list()] == [first.id]
    for _ in range(LIMITS["max_key_files"]):
        upload(bob, b"z")
    with pytest.raises(openai.PermissionDeniedError, match="There are 12 files, as many as may be kept"):
        upload(bob, b"z")
    ann.files.delete(first.id)
    upload(ann, b"y" * 250_000)


def test_a_file_has_this_many_lines_blank_ones_among_them(ann: openai.OpenAI) -> None:
    upload(ann, b"\n" * MAX_LINES)
    with pytest.raises(openai.BadRequestError, match=f"at most {MAX_LINES} lines"):
        upload(ann, b"\n" * (MAX_LINES + 1))


def test_blank_lines_cost_bounded_work(tmp_path: Path) -> None:
    path = tmp_path / "blank"
    path.write_bytes(b"\n" * 20_000_000)
    assert calls_made_by(lambda: count_requests(path, MAX_REQUESTS, MAX_LINES)) < 5 * MAX_LINES
    assert count_requests(path, MAX_REQUESTS, MAX_LINES) > MAX_REQUESTS


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    line = b'{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {}}\n'
    path = tmp_path / "marked"
    for text in (line, codecs.BOM_UTF8 + line):
        path.write_bytes(text)
        assert [getattr(line, "url", line) for line in BatchRequests(path, None, 1000)] == ["/v1/completions"]


def test_a_file_may_be_longer_than_a_body_and_is_refused_when_it_is_longer_than_a_file(
    ann: openai.OpenAI, settings: Settings
) -> None:
    assert settings.files_dir is not None
    kept = upload(ann, b"x" * 299_999)
    for size in (300_001, 900_000):
        with pytest.raises(
            openai.APIStatusError, match=r"at most 300000 bytes|is longer than 365536 bytes"
        ) as rejected:
            upload(ann, b"y" * size)
        assert rejected.value.status_code == 413
    assert contents(settings.files_dir) == {kept.id}


def test_a_file_expires_when_its_maker_says(ann: openai.OpenAI) -> None:
    made = ann.files.create(
        file=io.BytesIO(CONTENT), purpose="batch", expires_after={"anchor": "created_at", "seconds": 7200}
    )
    assert made.expires_at is not None
    assert made.expires_at - made.created_at == 7200
    with pytest.raises(openai.BadRequestError, match=r"expires_after\.seconds must be greater than .* 3600, got '5'"):
        ann.files.create(
            file=io.BytesIO(CONTENT), purpose="batch", expires_after={"anchor": "created_at", "seconds": 5}
        )
    for fields in ({"expires_after": "1"}, {"expires_after": "1", "expires_after[seconds]": "7200"}):
        with pytest.raises(openai.BadRequestError, match="expires_after"):
            ann.files.create(file=io.BytesIO(CONTENT), purpose="batch", extra_body=fields)


def test_what_has_expired_or_was_never_finished_is_not_reported_and_leaves_the_disk(tmp_path: Path) -> None:
    store = Store(tmp_path, Limits(1000, 1000, 10))
    owned = store.of("ann")
    expired, kept, left = (owned.new_file() for _ in range(3))
    owned.keep(expired.name, "name", -1)
    owned.keep(kept.name, "name", 3600)
    strange = kept.with_name("notes of somebody")
    strange.touch()
    assert [file.id for file in owned.files()] == [kept.name]
    store.clean()
    assert (expired.exists(), kept.exists(), left.exists()) == (False, True, True)
    for path in (kept, left, strange):
        os.utime(path, (0, 0))  # written long ago
    store.clean()
    assert (kept.exists(), left.exists(), strange.exists()) == (True, False, True)


UNFINISHED = b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\n'


@pytest.mark.parametrize(
    ("content_type", "body", "message"),
    [
        ("application/json", b"{}", "must be a form with a file"),
        ("multipart/form-data; boundary=b", b"--b\r\nno form", "is not a proper form|ends before the form"),
        ("multipart/form-data; boundary=b", b"", "ends before the form does"),
        ("multipart/form-data; boundary=b", UNFINISHED, "ends before"),
        ("multipart/form-data; boundary=b", b"--b--\r\n", "file is required|ends before"),
    ],
)
def test_what_is_no_form_is_refused_with_a_sentence(
    base_url: str, settings: Settings, content_type: str, body: bytes, message: str
) -> None:
    headers = {"content-type": content_type, "authorization": "Bearer ann"}
    response = httpx.post(f"{base_url}/files", content=body, headers=headers, trust_env=False)
    assert response.status_code in (400, 422)
    assert any(part in response.json()["error"]["message"] for part in message.split("|")), response.text
    assert settings.files_dir is not None
    assert contents(settings.files_dir) == set()


def test_other_purposes_and_empty_files_are_refused(ann: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="purpose must be 'batch', got 'fine-tune'"):
        ann.files.create(file=("x", b"x"), purpose="fine-tune")
    with pytest.raises(openai.BadRequestError, match="The file must not be empty"):
        upload(ann, b"")


def test_a_files_name_is_a_name_and_no_path(ann: openai.OpenAI) -> None:
    assert upload(ann, name="../../etc/passwd").filename == "passwd"
    for file_id in ("../../lock", "file-../../x", "lock", "../records.sqlite", "\x00"):
        with pytest.raises(openai.NotFoundError):
            ann.files.content(file_id)


def test_a_server_that_keeps_nothing_says_how_it_would(asking_client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="keeps no files, and runs no batches; start it with --files-dir"):
        upload(asking_client)
    with pytest.raises(openai.BadRequestError, match="--files-dir"):
        asking_client.batches.list()


def test_a_path_with_several_methods_names_them_all(base_url: str) -> None:
    headers = {"authorization": "Bearer ann"}
    for path, allowed in (
        ("files", "GET, POST, HEAD"),
        ("files/file-1", "GET, DELETE, HEAD"),
        ("files/x/content", "GET, HEAD"),
    ):
        response = httpx.put(f"{base_url}/{path}", headers=headers, trust_env=False)
        assert (response.status_code, response.headers["allow"]) == (405, allowed)
