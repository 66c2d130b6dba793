from collections.abc import Iterator

import pytest

from lmdeploy.serve.tritonserver import TritonServer
from openai_gateway.settings import Settings
from tests.support.gateways import running_gateway
from tests.support.servers import running_triton


@pytest.fixture(scope="session")
def triton_server() -> Iterator[TritonServer]:
    """A real tritonserver with the default model in float32; it caches and drafts as that of ``make serve`` does."""
    with running_triton() as server:
        yield server


@pytest.fixture(scope="session")
def gateway(triton_server: TritonServer) -> Iterator[str]:
    """URL of a gateway in front of `triton_server`, without ``/v1``."""
    with running_gateway(Settings(triton_address=triton_server.grpc_address)) as url:
        yield url
