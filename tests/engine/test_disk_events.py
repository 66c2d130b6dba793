"""Events of files in `cache_dir`, as a router reads them, held against what is in the directory."""

import contextlib
import hashlib
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lmdeploy import TurbomindEngineConfig
from tests.support.event_stream import Index, block_hash
from tests.support.tiny_models import make_tiny_llama
from tests.support.token_engine import TokenEngine
from tests.support.waiting import eventually_sync

BLOCK = 16
HEADER = 32  # bytes of a file before its key
DIGEST = 32


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("tiny") / "model")


def settings(tmp_path: Path, name: str, **more: Any) -> dict[str, Any]:
    return {
        "dtype": "float32", "cache_block_seq_len": BLOCK, "cache_max_entry_count": 200, "session_len": 256,
        "enable_prefix_caching": True, "cache_dir": str(tmp_path / "cache"), "threads": 1,
        "kv_events_config": {
            "enable_kv_cache_events": True, "topic": "kv@pod@tiny",
            "endpoint": f"ipc://{tmp_path}/{name}-events", "replay_endpoint": f"ipc://{tmp_path}/{name}-replay",
        },
    } | more  # fmt: skip


def index_of(given: dict[str, Any]) -> Index:
    return Index(given["kv_events_config"]["endpoint"], given["kv_events_config"]["replay_endpoint"])


def prompts(seed: int, count: int) -> list[list[int]]:
    """Return prompts that branch from few others."""
    chance = random.Random(seed)
    common = [[chance.randrange(1000) for _ in range(180)] for _ in range(5)]
    return [
        chance.choice(common)[: chance.randrange(20, 180)] + [chance.randrange(1000) for _ in range(20)]
        for _ in range(count)
    ]


def generate(engine: TokenEngine, prompt: list[int]) -> list[int]:
    """Return a prompt with the tokens that follow it."""
    return prompt + engine.respond([prompt], tokens=10)[0]


def hashes_in(cache: Path, texts: list[list[int]], *, whole_prefixes: bool = False) -> set[int]:
    """Return the hashes of the blocks that the files of a directory hold, each of which must be one of these texts.

    ``whole_prefixes``: only blocks whose preceding blocks are files too.
    """
    files: dict[str, bytes] = {}
    for path in cache.glob("*.kv"):
        with contextlib.suppress(FileNotFoundError):  # it may have gone for want of space
            files[path.stem] = path.read_bytes()[HEADER:]
    roots = set()
    known: dict[str, int] = {}
    found: set[int] = set()

    def content(tokens: list[int]) -> bytes:
        return b"".join(number.to_bytes(4, "little") for number in [BLOCK, *tokens])

    for text in texts:
        first = content(text[:BLOCK])
        roots |= {key[:DIGEST] for key in files.values() if key[DIGEST : DIGEST + len(first)] == first}
    assert len(roots) <= 1
    for text in texts:
        digest, parent, is_whole = next(iter(roots), b""), None, False
        for begin in range(0, len(text) - BLOCK + 1, BLOCK):
            tokens = text[begin : begin + BLOCK]
            parent = block_hash(parent, tokens)
            name = hashlib.sha256(digest + content(tokens) + b"\0").hexdigest()
            known[name] = parent
            is_whole = name in files and (is_whole or begin == 0)
            if is_whole:
                found.add(parent)
            digest = hashlib.sha256(digest + content(tokens)).digest()
    return found if whole_prefixes else {known[name] for name in files}


def stored(index: Index, engine: TokenEngine) -> set[int]:
    """Return the hashes that an engine's events say files hold."""
    index.follow(engine.metrics()["kv_event_batches_total"])
    return {key for key, media in index.media.items() if "DISK" in media}


def test_a_router_knows_which_blocks_files_hold(directory: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    given = settings(tmp_path, "one", cache_dir_bytes=600_000)
    texts: list[list[int]] = []
    with TokenEngine(directory, TurbomindEngineConfig(**given)) as engine, index_of(given) as index:
        texts.extend(generate(engine, prompt) for prompt in prompts(1, 80))
        eventually_sync(lambda: stored(index, engine) == hashes_in(cache, texts))
        blocks = {tuple(text[:end]) for text in texts for end in range(BLOCK, len(text), BLOCK)}
        assert 50 < len(stored(index, engine)) < len(blocks) - 20
    with TokenEngine(directory, TurbomindEngineConfig(**given)) as engine, index_of(given) as index:
        eventually_sync(
            lambda: stored(index, engine) == hashes_in(cache, texts, whole_prefixes=True) != set(), timeout=60
        )


OTHER = """
import json, sys
from lmdeploy import TurbomindEngineConfig
from tests.engine.test_disk_events import generate
from tests.support.token_engine import TokenEngine
with TokenEngine(sys.argv[1], TurbomindEngineConfig(**json.loads(sys.argv[2]))) as engine:
    for line in sys.stdin:
        print(json.dumps(generate(engine, json.loads(line))), flush=True)
"""


def test_routers_know_of_engines_that_share_a_directory(directory: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    given = [settings(tmp_path, name, cache_dir_bytes=600_000) for name in ("one", "two")]
    with (
        TokenEngine(directory, TurbomindEngineConfig(**given[0])) as engine,
        index_of(given[0]) as index,
        subprocess.Popen(
            [sys.executable, "-c", OTHER, str(directory), json.dumps(given[1])],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        ) as other,
    ):  # fmt: skip
        assert other.stdin is not None
        assert other.stdout is not None
        texts = []
        for number, prompt in enumerate(prompts(2, 80)):
            if number % 2:
                texts.append(generate(engine, prompt))
                continue
            print(json.dumps(prompt), file=other.stdin, flush=True)
            texts.append(json.loads(other.stdout.readline()))
        other.stdin.close()
        assert other.wait(180) == 0
        # Removals by the other are noticed; its writes are not this engine's to announce before they are asked for.
        there = hashes_in(cache, texts)
        eventually_sync(lambda: stored(index, engine) <= there)
        assert stored(index, engine) < there
        assert stored(index, engine)
        texts = [generate(engine, text) for text in texts]
        eventually_sync(lambda: stored(index, engine) <= hashes_in(cache, texts))
