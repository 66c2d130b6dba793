"""A GPU that is lost, or hangs, while the server runs: the emulation of CUDA plays it."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from lmdeploy.serve.client import GenerateRequest, TritonClient
from lmdeploy.serve.errors import TritonUnavailable
from lmdeploy.serve.ports import Ports
from lmdeploy.serve.supervisor import RestartPolicy, Supervisor
from lmdeploy.serve.tritonserver import TritonServer
from lmdeploy.turbomind.engine_dir import resolve
from lmdeploy.turbomind.repository import template_dir
from openai_gateway.settings import Settings
from tests.support.gateways import running_gateway
from tests.support.servers import START
from tests.support.tiny_models import make_small
from tests.support.waiting import eventually_sync

EMULATED_BACKEND = Path(__file__).parent / "backends" / "turbomind"


@pytest.fixture
def lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file; while it exists, the device is lost."""
    file = tmp_path / "lost"
    monkeypatch.setenv("EMULATED_CUDA_LOST_FILE", str(file))
    return file


@pytest.fixture
def hung(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file; while it exists, nothing that is asked of the device ends."""
    file = tmp_path / "hung"
    monkeypatch.setenv("EMULATED_CUDA_HUNG_FILE", str(file))
    return file


@pytest.fixture
def server(tmp_path: Path, lost: Path, hung: Path) -> Iterator[TritonServer]:
    if not (EMULATED_BACKEND / "libtriton_turbomind.so").is_file():
        pytest.skip("the Triton backend with an emulated CUDA is not built: run `make build-tests`")
    model = make_small(tmp_path / "model", "LlamaForCausalLM")
    resolve(model)  # here, where transformers is loaded
    server = TritonServer(
        template_dir(),
        model_path=str(model),
        model_name="tiny",
        engine_config={
            "device": "cuda",
            "dtype": "float32",
            "session_len": 128,
            "max_prefill_token_num": 64,
            "step_timeout": 2,
        },
        ports=Ports.free(),
        backends=(EMULATED_BACKEND,),
    )
    supervisor = Supervisor(server, RestartPolicy(first_delay=1, poll_interval=0.05, unready_after=2))
    try:
        server.start()
        server.wait_ready(START)
        supervisor.start()
        yield server
    finally:
        supervisor.stop()


def respond(server: TritonServer, tokens: int) -> int:
    """Return how many tokens were answered."""

    async def generate() -> int:
        async with TritonClient(server.grpc_address) as client:
            request = GenerateRequest(text_input="a", max_new_tokens=tokens, ignore_eos=True)
            return [chunk async for chunk in client.generate(request)][-1].generate_token_len or 0

    return asyncio.run(generate())


def test_the_server_says_that_its_device_is_lost_or_hangs_and_is_started_again(
    server: TritonServer, lost: Path, hung: Path
) -> None:
    with running_gateway(Settings(triton_address=server.grpc_address)) as gateway:

        def health() -> int:
            return httpx.get(f"{gateway}/health", trust_env=False).status_code

        def endure(fault: Path, message: str | None) -> None:
            assert respond(server, 5) == 5
            eventually_sync(lambda: health() == 200)
            first = server.pid
            fault.touch()
            begin = time.monotonic()
            with pytest.raises(TritonUnavailable, match=message):
                respond(server, 100)
            eventually_sync(lambda: health() == 503, timeout=START)
            assert fault == lost or time.monotonic() - begin > 2  # a step may take so long
            fault.unlink()
            eventually_sync(lambda: server.pid != first and server.is_ready(), timeout=START)
            eventually_sync(lambda: health() == 200, timeout=START)

        endure(lost, r"the engine stopped: .*CUDA")
        endure(hung, None)  # until the server ends
        assert respond(server, 5) == 5
