"""A checkpoint that changes while it is served."""

import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.faults.callers import complete, expect_no_leaks, is_answered
from tests.support.commands import ApiServer, api_server
from tests.support.servers import START
from tests.support.tiny_models import make_tiny_llama
from tests.support.waiting import eventually_sync

pytestmark = pytest.mark.e2e

WEIGHTS = "model.safetensors"


def generated_text(server: ApiServer) -> str:
    response = complete(server, temperature=0, max_tokens=16)
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["message"]["content"])


def test_responses_stay_what_they_were_and_a_broken_file_is_reported_when_it_is_next_read(
    model: Path, tmp_path: Path
) -> None:
    served = Path(shutil.copytree(model, tmp_path / "tiny"))
    other = make_tiny_llama(tmp_path / "other", seed=1, max_position_embeddings=32768)
    weights, whole = served / WEIGHTS, (served / WEIGHTS).read_bytes()
    with api_server(str(served), "--cache-max-entry-count", "64") as server:
        server.wait_ready()
        first = generated_text(server)
        Path(shutil.copy(other / WEIGHTS, tmp_path / "new")).replace(weights)  # as a download does
        assert generated_text(server) == first
        weights.write_bytes(whole[: len(whole) // 2])  # as a full disk does
        assert generated_text(server) == first
        os.kill(server.triton_pid(), signal.SIGKILL)  # only now is it read again
        eventually_sync(lambda: "model turbomind could not be loaded" in server.output, timeout=START)
        assert f"{WEIGHTS}: " in server.output
        assert "the file is truncated" in server.output
        assert not is_answered(server)
        weights.write_bytes(whole)
        eventually_sync(lambda: is_answered(server), timeout=START)
        assert generated_text(server) == first
        expect_no_leaks(server)
        assert server.end(signal.SIGTERM) == 143, server.output
