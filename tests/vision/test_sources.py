"""Callers get images from where the rules allow, and from nowhere else."""

import base64
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

import lmdeploy.vl.fetching as fetching
from lmdeploy.vl import IMAGE_TOKEN, encode_image_base64, load_image
from lmdeploy.vl.decoding import Limits
from lmdeploy.vl.fetching import FetchRules, fetch
from lmdeploy.vl.sources import DATA_ONLY, SourceRules, load, load_frames
from lmdeploy.vl.utils import load_image_from_base64
from lmdeploy.vl.videos import Sampling
from tests.support.http_host import NOT_FOUND, Host, Reply, Request, running_host
from tests.support.images import data_url, file_of, make_image

PNG = file_of(make_image(20, 10))
FROM_HERE = FetchRules(("127.0.0.1", "localhost"), allows_private=True, seconds=60, max_bytes=100_000)


@pytest.fixture
def host() -> Iterator[Host]:
    """A host with images, and trouble."""
    released = threading.Event()

    def respond(request: Request) -> Reply:
        path, _, query = request.path.partition("?")
        if path == "/slow":
            released.wait(20)
        if path.startswith("/to"):
            return Reply(status=302, headers={"Location": query})
        body = {"/image": PNG, "/slow": PNG, "/long": b"x" * 200_000, "/text": b"hello"}.get(path)
        return NOT_FOUND if body is None else Reply(body)

    with running_host(respond) as host:
        yield host
        released.set()


def test_users_of_the_package_load_images_from_everywhere(host: Host, tmp_path: Path) -> None:
    file = tmp_path / "an image.png"
    file.write_bytes(PNG)
    expected = make_image(20, 10).tobytes()
    for source in (f"{host.url}/image", data_url(PNG), str(file), f"file://{file}", make_image(20, 10)):
        assert load_image(source).tobytes() == expected
    assert load_image_from_base64(base64.b64encode(PNG)).tobytes() == expected
    for named in (f"{host.url}/image", data_url(PNG), str(file)):
        assert base64.b64decode(encode_image_base64(named)) == PNG
    assert load_image_from_base64(encode_image_base64(make_image(20, 10))).tobytes() == expected
    assert IMAGE_TOKEN == "<IMAGE_TOKEN>"


BASE64 = base64.b64encode(PNG).decode()


@pytest.mark.parametrize(
    "source",
    [
        f"data:image/png;charset=utf-8;base64,{BASE64}",
        f"data:image/png;name=a%20b.png;charset=utf-8;base64,{BASE64}",
        f"data:;base64,{BASE64}",
        f"DATA:IMAGE/PNG;BASE64,{BASE64}",
        f"data:image/png; charset=utf-8; base64, {BASE64}",
        f"data:image/png;base64,{BASE64.rstrip('=')}",
        f"data:image/png;base64,{base64.encodebytes(PNG).decode()}",
        f"data:image/png;base64,{base64.encodebytes(PNG).decode().replace(chr(10), chr(13) + chr(10))}",
        f"data:image/png;base64,{quote(BASE64, safe='')}",
    ],
    ids=["parameter", "parameters", "no type", "capitals", "spaces", "unpadded", "lines", "lines of mail", "percent"],
)
def test_data_urls_are_read_as_clients_write_them(source: str) -> None:
    expected = make_image(20, 10).tobytes()
    assert load(source, DATA_ONLY).tobytes() == expected
    assert load_frames(source, Sampling(), DATA_ONLY).frames[0].tobytes() == expected
    assert base64.b64decode(encode_image_base64(source)) == PNG


def test_a_redirect_is_followed_as_far_as_the_rules_allow(host: Host) -> None:
    assert fetch(f"{host.url}/to?{host.url}/image", FROM_HERE) == PNG
    assert fetch(f"{host.url}/to?/image", FROM_HERE) == PNG
    for address in ("http://example.com/x.png", "file:///etc/passwd", "ftp://127.0.0.1/x"):
        with pytest.raises(ValueError, match=r"not among the allowed hosts|must begin with http"):
            fetch(f"{host.url}/to?{address}", FROM_HERE)
    with pytest.raises(ValueError, match="elsewhere more than 3 times"):
        fetch(f"{host.url}/to?/to?/to?/to?/to?", FROM_HERE)
    assert len(host.requests) < 15


@pytest.mark.parametrize(
    ("path", "reason"),
    [("/long", "at most 100000 bytes"), ("/missing", "answered 404"), ("/slow", "no response in time")],
)
def test_a_response_that_is_too_long_too_late_or_none_is_refused(host: Host, path: str, reason: str) -> None:
    seconds = 0.5 if path == "/slow" else 60
    rules = FetchRules(FROM_HERE.hosts, allows_private=True, seconds=seconds, max_bytes=100_000)
    begin = time.monotonic()
    with pytest.raises(ValueError, match=reason):
        fetch(f"{host.url}{path}", rules)
    assert time.monotonic() - begin < 15, "the time is bounded"


def test_a_host_that_drips_is_left_in_time() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    ended = threading.Event()

    def drip() -> None:
        connection, _ = listener.accept()
        with connection:
            try:
                for letter in b"HTTP/1.1 200 OK\r\nX: " + b"y" * 10_000:
                    connection.sendall(bytes([letter]))
                    if ended.wait(0.02):
                        return
            except OSError:
                return

    thread = threading.Thread(target=drip, daemon=True)
    thread.start()
    rules = FetchRules(("127.0.0.1",), allows_private=True, seconds=0.5)
    with pytest.raises(ValueError, match=r"cannot be fetched from 127\.0\.0\.1"):
        fetch(f"http://127.0.0.1:{listener.getsockname()[1]}/", rules)
    ended.set()
    thread.join(180)
    listener.close()
    assert not thread.is_alive()


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.1.2.3", "192.168.0.1", "169.254.169.254", "100.64.1.1", "0.0.0.0", "224.0.0.1", "::1", "fe80::1",
     "fc00::1", "::ffff:127.0.0.1", "2002:7f00:1::", "64:ff9b::7f00:1",
     "::7f00:1", "::ffff:0:7f00:1", "fec0::1", "64:ff9b:1::7f00:1"],
)  # fmt: skip
def test_names_of_this_network_are_not_fetched_from(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("93.184.216.34", 80)), (family, 1, 6, "", (address, 80))]
    monkeypatch.setattr(fetching.socket, "getaddrinfo", lambda *_, **__: found)
    monkeypatch.setattr(fetching.socket, "create_connection", lambda *_, **__: pytest.fail("connected"))
    with pytest.raises(ValueError, match="private network"):
        fetch("http://images.example/x.png", FetchRules(("images.example",)))


def test_what_was_checked_is_what_is_connected_to(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    responses = iter([[(socket.AF_INET, 1, 6, "", ("127.0.0.1", 80))]])
    monkeypatch.setattr(fetching.socket, "getaddrinfo", lambda *_, **__: next(responses))
    connected: list[Any] = []
    real = socket.socket.connect
    monkeypatch.setattr(
        fetching.socket, "create_connection", lambda where, timeout: connected.append(where) or _connect(where, real)
    )
    rules = FetchRules(("images.example",), allows_private=True)
    port = urlsplit(host.url).port
    assert fetch(f"http://images.example:{port}/image", rules) == PNG
    assert connected == [("127.0.0.1", port)]


def _connect(where: tuple[str, int], connect: Any) -> socket.socket:
    made = socket.socket()
    made.settimeout(5)
    connect(made, where)
    return made


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("http://example.com/a.png", "not among the allowed hosts"),
        ("https://user:secret@example.com/a.png", "without a user's name"),
        ("http://[::1", "URL is none"),
        ("file:///etc/passwd", "a file in the folder of --allowed-local-media-path"),
        ("/etc/passwd", "a file in the folder of --allowed-local-media-path"),
        ("../secret.png", "a file in the folder of --allowed-local-media-path"),
        ("ftp://example.com/a.png", "a file in the folder of --allowed-local-media-path"),
        ("data:image/png;base64,####", "no base64"),
        ("data:image/png;base64,aGVsbG8=", "must be an image"),
        ("data:image/png;base64,aGVsb", "no base64"),
        ("data:image/png,hello", "must begin with data:image"),
        ("data:text/html;base64,aGVsbG8=", "must begin with data:image"),
        ("", "a file in the folder of --allowed-local-media-path"),
        (7, "must be an image, a URL"),
        (None, "must be an image, a URL"),
    ],
    ids=str,
)
def test_callers_from_elsewhere_bring_their_images_along(source: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        load(source, DATA_ONLY)


def test_files_are_read_from_an_allowed_folder_alone(tmp_path: Path) -> None:
    folder = tmp_path / "allowed"
    folder.mkdir()
    (folder / "a.png").write_bytes(PNG)
    (tmp_path / "b.png").write_bytes(PNG)
    (folder / "link.png").symlink_to(tmp_path / "b.png")
    rules = SourceRules(folder=folder, limits=Limits(max_bytes=10_000))
    assert load(str(folder / "a.png"), rules).size == (20, 10)
    assert load(f"file://{folder}/a.png", rules).size == (20, 10)
    reasons = set()
    for name in ("../b.png", "link.png", "none.png", "."):
        with pytest.raises(ValueError, match="folder of --allowed-local-media-path") as rejected:
            load(f"{folder}/{name}", rules)
        reasons.add(str(rejected.value))
    assert len(reasons) == 1, "what is there and what is not is distinguished"
