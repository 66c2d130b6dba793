"""Events of the block cache, as a router reads them, held against what the engine itself finds in its cache."""

import os
import random
import signal
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from lmdeploy import PytorchEngineConfig, TurbomindEngineConfig
from lmdeploy.kv_events.config import KvEventsConfig
from lmdeploy.turbomind.engine import Engine
from tests.support.adapters import make_adapter
from tests.support.event_stream import BlockStored, Index
from tests.support.prefix_hits import MIN_COPIED
from tests.support.tiny_models import make_tiny_llama
from tests.support.token_engine import TokenEngine
from tests.support.waiting import eventually_sync

BLOCK = 16
REQUESTS = 10_000
PROBES = 60


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture
def events(tmp_path: Path) -> dict[str, Any]:
    """A configuration whose sockets are files."""
    return {
        "enable_kv_cache_events": True,
        "endpoint": f"ipc://{tmp_path}/events",
        "replay_endpoint": f"ipc://{tmp_path}/replay",
        "topic": "kv@pod@tiny",
    }


def index_of(events: dict[str, Any]) -> Index:
    return Index(events["endpoint"], events["replay_endpoint"])


def prompts(seed: int) -> Iterator[tuple[list[int], str | None]]:
    """Yield prompts that branch from few others, for no adapter or one of two."""
    chance = random.Random(seed)
    common = [[chance.randrange(1000) for _ in range(200)] for _ in range(12)]
    while True:
        suffix = [chance.randrange(1000) for _ in range(chance.randrange(1, 40))]
        yield chance.choice(common)[: chance.randrange(0, 100)] + suffix, chance.choice([None, "a", "b"])


def check(index: Index, engine: TokenEngine) -> None:
    """Compare an index with the metrics of an idle engine, which publishes no partial blocks."""
    measurements = engine.metrics()
    index.follow(measurements["kv_event_batches_total"])
    idle, in_host = measurements["cache_blocks_idle"], measurements["host_blocks_used"]
    assert idle / 2 < index.count("GPU") <= idle
    assert in_host / 2 <= index.count("CPU") <= in_host


def test_a_router_knows_after_ten_thousand_requests_what_the_engine_will_find(
    directory: Path, tmp_path: Path, events: dict[str, Any]
) -> None:
    adapters = {name: str(make_adapter(tmp_path / name, directory, seed=ord(name))) for name in "ab"}
    config = TurbomindEngineConfig(
        dtype="float32", cache_block_seq_len=BLOCK, cache_max_entry_count=200, num_cpu_blocks=120, session_len=256,
        enable_prefix_caching=True, adapters=adapters, kv_events_config=events,
    )  # fmt: skip
    with TokenEngine(directory, config) as engine, index_of(events) as index:
        requested = prompts(1)
        engine.respond(*zip(*islice(requested, REQUESTS), strict=True))
        check(index, engine)
        measurements = engine.metrics()
        assert measurements["requests_completed_total"] == REQUESTS
        assert measurements["evictions_total"] > REQUESTS
        assert measurements["swapped_in_total"] > 100
        assert measurements["kv_event_losses_total"] == 0
        hits = 0
        for _ in range(PROBES):
            prompt, adapter = next(requested)
            expected = index.found(prompt, BLOCK, adapter)
            before = engine.metrics()["prefix_cache_hits_total"]
            engine.respond([prompt], [adapter])
            beyond = engine.metrics()["prefix_cache_hits_total"] - before - expected
            assert beyond == 0 or MIN_COPIED <= beyond < BLOCK
            hits += expected > 0
            check(index, engine)
        assert PROBES / 10 < hits < PROBES
        assert index.hashes_checked > REQUESTS


def test_the_pytorch_engine_reports_the_same(directory: Path, events: dict[str, Any]) -> None:
    config = PytorchEngineConfig(
        dtype="float32", block_size=BLOCK, num_gpu_blocks=40, session_len=256, enable_prefix_caching=True,
        kv_events_config=events,
    )  # fmt: skip
    with TokenEngine(directory, config) as engine, index_of(events) as index:
        requested = prompts(2)
        engine.respond([ids for ids, _ in islice(requested, 40)])
        check(index, engine)
        assert index.hashes_checked > 40


def publisher_of(events: dict[str, Any]) -> int:
    """Return the process that publishes."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"lmdeploy.kv_events.publisher" in words and any(events["endpoint"].encode() in word for word in words):
            return int(folder.name)
    raise AssertionError("there is no publisher")


def test_a_publisher_that_is_killed_costs_nothing_but_a_beginning_again(
    directory: Path, events: dict[str, Any]
) -> None:
    config = TurbomindEngineConfig(
        dtype="float32", cache_block_seq_len=BLOCK, enable_prefix_caching=True, kv_events_config=events
    )
    with TokenEngine(directory, config) as engine:
        requested = prompts(3)
        engine.respond([ids for ids, _ in islice(requested, 20)])
        os.kill(publisher_of(events), signal.SIGKILL)

        def is_reported_again() -> bool:
            engine.respond([next(requested)[0]])
            return engine.metrics()["kv_event_losses_total"] == 1 and publishes(events)

        eventually_sync(is_reported_again)
        engine.respond([next(requested)[0]])
        with index_of(events) as index:
            check(index, engine)
            assert index.clears == 1
            assert index.count("GPU") > 40


def publishes(events: dict[str, Any]) -> bool:
    """Return whether a publisher is there that has something to replay."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.connect(events["replay_endpoint"])
        socket.send_multipart([b"", bytes(8)])
        return bool(socket.poll(1000)) and socket.recv_multipart()[1] != b""


def test_events_can_be_arrays_as_they_once_were(directory: Path, events: dict[str, Any]) -> None:
    config = TurbomindEngineConfig(
        dtype="float32", cache_block_seq_len=BLOCK, enable_prefix_caching=True,
        kv_events_config=events | {"event_format": "array"},
    )  # fmt: skip
    with TokenEngine(directory, config) as engine, zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.connect(events["replay_endpoint"])
        engine.respond([range(BLOCK + 1)])
        data = b""
        while not data:
            socket.send_multipart([b"", bytes(8)])
            data = socket.recv_multipart()[3]
        (_, ((name, hashes, parent, tokens, size, lora_id, medium, lora_name, extra),), rank) = msgspec.msgpack.decode(
            data
        )
        assert (name, parent, size, medium) == (BlockStored.__name__, None, BLOCK, "GPU")
        assert tokens == list(range(BLOCK))
        assert len(hashes) == 1
        assert lora_id is lora_name is extra is rank is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"enable_kv_cache_event": True}, "there is no field enable_kv_cache_event; did you mean enable_kv_cache_e"),
        ({"endpoint": "5557"}, "endpoint must begin with tcp:// or ipc://, got '5557'"),
        ({"hwm": -1}, "hwm must be"),
        ({"publisher": "kafka"}, "publisher must be one of"),
    ],
)
def test_what_makes_no_sense_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="kv_events_config: ") as rejected:
        TurbomindEngineConfig(enable_prefix_caching=True, kv_events_config=given)
    assert message in str(rejected.value)


def test_events_without_prefix_caching_are_refused() -> None:
    with pytest.raises(ValueError, match="kv_events_config needs enable_prefix_caching"):
        PytorchEngineConfig(enable_prefix_caching=False, kv_events_config={"enable_kv_cache_events": True})
    assert not KvEventsConfig.of({"enable_kv_cache_events": True, "publisher": "null"}).publishes
    nobody = {"enable_kv_cache_events": True, "publisher": "null"}
    TurbomindEngineConfig(enable_prefix_caching=False, kv_events_config=nobody)


def test_an_address_in_use_is_reported_before_a_model_is_loaded(directory: Path) -> None:
    with zmq.Context() as context, context.socket(zmq.PUB) as taken:
        port = taken.bind_to_random_port("tcp://*")
        config = TurbomindEngineConfig(
            enable_prefix_caching=True, kv_events_config={"enable_kv_cache_events": True, "endpoint": f"tcp://*:{port}"}
        )
        with pytest.raises(ValueError, match=rf"endpoint tcp://\*:{port} cannot be used: Address already in use"):
            Engine(str(directory), config)
