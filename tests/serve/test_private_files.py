"""Files of a server that other users of the machine can read: none with callers' texts."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from tempfile import gettempdir

import pytest

from lmdeploy.cli.triton import open_log
from lmdeploy.scratch import Scratch
from lmdeploy.serve.ports import Ports
from lmdeploy.serve.shared_memory import FOLDER
from lmdeploy.serve.tritonserver import TritonServer
from openai_gateway.batches.results import Results
from openai_gateway.batches.store import Limits, Store
from openai_gateway.stored_responses.record import Bounds, ResponseStore, StoredResponse
from tests.support.fake_repository import write_fake_repository
from tests.support.processes import session_members

START = 60.0
OTHERS = stat.S_IRWXG | stat.S_IRWXO


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    """A user's default: files that everybody reads."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def open_to_others(*paths: Path) -> list[str]:
    return [f"{path}: {stat.filemode(path.stat().st_mode)}" for path in paths if path.stat().st_mode & OTHERS]


def test_tritonserver_s_processes_and_shared_memory_are_its_user_s_alone(tmp_path: Path) -> None:
    before = set(FOLDER.iterdir())
    server = TritonServer(write_fake_repository(tmp_path), ports=Ports.free(), backends=())
    with server:
        server.wait_ready(START)
        made = [path for path in set(FOLDER.iterdir()) - before if path.name.startswith("lmdeploy-triton-")]
        assert len(made) > 1
        assert not open_to_others(*made)
        assert server.pid is not None
        for pid in session_members(server.pid):
            assert "\nUmask:\t0077\n" in Path(f"/proc/{pid}/status").read_text()


def test_triton_s_log_is_private_also_one_of_an_earlier_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMDEPLOY_CACHE", str(tmp_path))
    args = argparse.Namespace(triton_grpc_port=4711, log_level="ERROR")
    old = tmp_path / "logs" / "tritonserver-4711.log"
    old.parent.mkdir()
    old.write_text("a prompt\n")
    assert open_to_others(old)
    logger = logging.getLogger("tritonserver")
    handlers = list(logger.handlers)
    try:
        path, _ = open_log(args)
        logger.info("%s", "x" * 11_000_000)  # rotates
        logger.info("another")
        assert path == old
        assert len(list(path.parent.iterdir())) > 1
        assert not open_to_others(*path.parent.iterdir())
    finally:
        for handler in set(logger.handlers) - set(handlers):
            logger.removeHandler(handler)
            handler.close()


def test_kept_files_are_private_in_a_folder_that_is_not(tmp_path: Path) -> None:
    owned = Store(tmp_path, Limits(1000, 1000, 10)).of(None)
    owned.new_file().write_text("a prompt")
    Results(*owned.results("batch_1")).add(1, b"a response", is_error=False)
    asyncio.run(ResponseStore(tmp_path, Bounds(1000, 10)).put(None, StoredResponse({"id": "resp_1"}, [])))
    kept = [path for path in tmp_path.rglob("*") if path.name != "lock"]
    assert {path.suffix for path in kept} >= {"", ".sqlite", ".sqlite-wal"}
    assert not open_to_others(*kept)


def test_temporary_folders_are_private() -> None:
    with Scratch(Path(gettempdir()), "lmdeploy-models-") as folder:
        assert not open_to_others(folder)
