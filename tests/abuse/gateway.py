"""Attacks on the gateway: beyond its API, or at a cost beyond its bounds."""

from __future__ import annotations

import base64
import io
import json
import shutil
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

from PIL import Image

from tests.abuse.bodies import BODIES, CHAT, COMPLETIONS, FORM, JSON, MODEL, Sent, form
from tests.abuse.callers import read_corpus
from tests.abuse.texts import SAMPLES, broken_texts

LOOPING = "looping"  # an adapter of this name, see `write_looping_adapter`
_ADMIN_PATHS = (
    *("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/load_model", "/v1/unload_model"),
    *("/v1/cache/drop", "/v1/cache/pin", "/v1/cache/unpin"),
)
_FILES = (
    "/etc/passwd",
    "file:///etc/passwd",
    "/proc/self/environ",
    "/dev/zero",
    "../../../../etc/passwd",
    "file://localhost/etc/passwd",
    "~/.ssh/id_rsa",
    "/proc/self/fd/0",
    "\x00",
)
_HOSTS = (
    "http://{other}/secret",
    "http://127.0.0.1:1/",
    "http://localhost/",
    "http://[::1]/",
    "http://[::ffff:127.0.0.1]/",
    "http://[::7f00:1]/",
    "http://[::ffff:0:7f00:1]/",
    "http://[fec0::1]/",
    "http://[64:ff9b::7f00:1]/",
    "http://[2002:7f00:1::]/",
    "http://0/",
    "http://0x7f.1/",
    "http://2130706433/",
    "http://169.254.169.254/latest/meta-data/",
    "http://user@{other}/",
    "http://allowed.invalid@{other}/",
    "http://allowed.invalid/",
    "http://allowed.invalid:99999/",
    "//{other}/secret",
    "ftp://{other}/",
    "gopher://{other}/",
    "data:text/html,<script>",
    "http://",
)


def gateway_requests(other: str, folder: Path) -> Iterator[Sent]:
    """Return attacks on a gateway.

    ``other``: ``HOST:PORT`` of a server that no request may reach; ``folder``: where an adapter was written by somebody
    who means harm, see `write_hostile_adapter`.
    """
    for name, hostile in BODIES.items():
        yield Sent(f"a body: {name}", "POST", hostile.path, hostile.make, JSON, not hostile.is_rejected)
    for path in SAMPLES:
        for body in broken_texts(path):
            yield Sent(f"no text for {path}", "POST", path, body, JSON)
    yield from _images(other)
    yield from _videos()
    yield from _costly()
    yield from _forms()
    for path in _ADMIN_PATHS:
        body = _json({"lora_name": "x", "lora_path": "/etc", "model_name": "x", "model_path": "/etc"})
        yield Sent(f"administration: {path}", "POST", path, body, JSON)
    for path in (
        "/v1/files/file-00000000000000000000000000000000",
        "/v1/files/..%2f..%2fetc%2fpasswd/content",
        "/v1/files/%00",
        "/v1/batches/batch_%2e%2e",
        "/v1/models/..%2f..",
        "/v1/files?after=%ED%A0%80&limit=10000",
        "/v1/files?limit=99999999999999999999",
    ):
        yield Sent("what is another's, or nobody's", "GET", path, may_be_served="?" in path)
    for options in (
        {"messages": "x"},
        {"tools": [{}] * 1000},
        {"enable_thinking": "x" * 100_000},
        {"a": {"b": [[[[1]]]]}},
        {"__class__": "x"},
    ):
        yield _chat("variables for the template", chat_template_kwargs=options)
    yield Sent(
        "an adapter with a pattern that takes forever",
        "POST",
        "/v1/load_lora_adapter",
        _json({"lora_name": "hostile", "lora_path": str(folder)}),
        {**JSON, "x-administrator": "yes"},
    )


def write_hostile_adapter(folder: Path, adapter: Path) -> None:
    """Write an adapter like another one, but for a pattern that a backtracking matcher never ends with."""
    shutil.copytree(adapter, folder)
    config = json.loads((folder / "adapter_config.json").read_text())
    config["rank_pattern"] = {r"((\w|\.)*)*x": 4}
    (folder / "adapter_config.json").write_text(json.dumps(config))


def write_looping_adapter(folder: Path, adapter: Path) -> None:
    """Write an adapter like another one, whose chat template takes hours for one message."""
    shutil.copytree(adapter, folder)
    loops = "".join(f"{{% for {name} in range(90000) %}}" for name in "abc") + "{% endfor %}" * 3
    template = "{{ messages[0].content }}{% if messages[0].content == 'loop' %}" + loops + "{% endif %}"
    (folder / "chat_template.jinja").write_text(template)


def _chat(
    name: str, content: Any = "a", may_be_served: bool = True, connections: int = 1, leaves: bool = False, **fields: Any
) -> Sent:
    body = {"model": MODEL, "messages": [{"role": "user", "content": content}], "max_tokens": 1, **fields}
    make = partial(_json, body)
    return Sent(name, "POST", CHAT, make, JSON, may_be_served, connections, leaves)


def _json(body: Any) -> bytes:
    return json.dumps(body).encode()


def _costly() -> Iterator[Sent]:
    """Yield requests that cost much more than they are long, in the order of the stages that they load."""
    wrong = BODIES["empty messages"]
    yield Sent("80 long bodies that are refused", "POST", CHAT, wrong.make, JSON, connections=80)
    yield Sent("80 long bodies of clients that leave", "POST", CHAT, wrong.make, JSON, connections=80, leaves=True)
    yield _chat("a template of nested loops", "loop", model=LOOPING)
    yield _chat("too many log probabilities", n=128, max_tokens=450, logprobs=True, top_logprobs=20)
    yield _chat("as many log probabilities as may be", n=128, max_tokens=48, logprobs=True, top_logprobs=20)
    yield _chat("a grammar of one wide character", guided_grammar="root ::= 中")
    yield _chat("a token that there is not", allowed_token_ids=[2**31 - 1], may_be_served=False)
    banned = {str(token): -100 for token in range(300)}
    yield _chat("a bias against many tokens", logit_bias=banned, allowed_token_ids=[5], max_tokens=8)
    for hostile in read_corpus():
        make = partial(_json, {"model": MODEL, **hostile.body})
        leaves = hostile.manner != "read"
        yield Sent(f"the corpus: {hostile.name}", "POST", hostile.path, make, JSON, True, leaves=leaves)


def _videos() -> Iterator[Sent]:
    part = {"type": "video_url", "video_url": {"url": f"data:image/gif;base64,{_long_gif()}"}}
    for leaves in (False, True):
        name = "17 long videos" + (" of clients that leave" if leaves else "")
        yield _chat(name, [part] * 17, may_be_served=True, connections=4 if leaves else 1, leaves=leaves)


@cache
def _long_gif() -> str:
    """Return a file of about 366 kB with as many frames as fit, as base64."""
    frames = [Image.new("L", (256, 256), shade % 251) for shade in range(303)]
    file = io.BytesIO()
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:], optimize=False)
    return base64.b64encode(file.getvalue()).decode()


def _images(other: str) -> Iterator[Sent]:
    for kind in ("image_url", "video_url"):
        for url in (*_FILES, *(host.format(other=other) for host in _HOSTS)):
            part = {"type": kind, kind: {"url": url}}
            yield _chat(f"an image from {url[:20]!r}", [part] * 3, may_be_served=False)
        for name, content in _bombs().items():
            url = f"data:image/png;base64,{base64.b64encode(content).decode()}"
            yield _chat(f"an image: {name}", [{"type": kind, kind: {"url": url}}], may_be_served=False)
    small = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64.b64encode(_png(8)).decode()}"}}
    yield _chat("as many small images as may be", [small] * 64)
    yield _chat("more images than may be", [small] * 65, may_be_served=False)


def _png(side: int, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    Image.new("L", (side, side), 128).save(file, kind, **options)
    return file.getvalue()


def _bombs() -> dict[str, bytes]:
    jpeg = _png(2000, "JPEG", progressive=True)
    begin, end = jpeg.rindex(b"\xff\xda"), jpeg.rindex(b"\xff\xd9")
    file = io.BytesIO()
    Image.new("1", (9000, 9000)).save(file, "TIFF", compression="group4")
    return {
        "a JPEG of 6000 scans": jpeg[:end] + jpeg[begin:end] * 6000 + jpeg[end:],
        "far too many pixels": _png(20_000),
        "a TIFF of too many pixels": file.getvalue(),
        "half a file": _png(500)[:-100],
        "nothing": b"",
        "text": b"hello" * 1000,
        "PostScript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n(x) run\n",
    }


def _forms() -> Iterator[Sent]:
    def upload(content: bytes, name: str = "a.jsonl", purpose: bytes = b"batch") -> bytes:
        return form(('name="purpose"', purpose), (f'name="file"; filename="{name}"', content))

    for name in ("../../a", "..", "/etc/a", "a" * 5000, "a\\..\\b", "", "中" * 300, "a\x00b"):
        yield Sent(f"a file called {name[:12]!r}", "POST", "/v1/files", upload(b"{}\n", name), FORM, True)
    yield Sent("a file of blank lines", "POST", "/v1/files", lambda: upload(b"\n" * (40 * 2**20)), FORM)
    yield Sent("a file for no batch", "POST", "/v1/files", upload(b"{}\n", purpose=b"fine-tune"), FORM)
    yield Sent("a form without an end", "POST", "/v1/files", b"--x\r\n" + bytes(2**20), FORM)
    head = b"--x\r\na: " + b"b" * 2**20
    yield Sent("a part's head without an end", "POST", "/v1/files", head, FORM)
    many = b'--x\r\ncontent-disposition: form-data; name="a"\r\n\r\n\r\n' * 10_000
    yield Sent("a form of many parts", "POST", "/v1/files", many, FORM)
    for body in (b"", b"x", bytes(2**20)):
        yield Sent("a form that is none", "POST", "/v1/files", body, FORM)
    batch = {"input_file_id": "file-../../etc", "endpoint": COMPLETIONS, "completion_window": "24h"}
    yield Sent("a batch of no file", "POST", "/v1/batches", _json(batch), JSON)
