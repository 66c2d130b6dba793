"""vLLM's CPU build: its own server, in its own environment."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lmdeploy.serve.ports import free_ports
from tools.bench.peers.paths import vllm_python
from tools.bench.server import running

_CACHE_GIB = 2
_START_SECONDS = 300  # it compiles parts of the model first


@contextmanager
def serving(model: Path, streams: int, max_tokens: int) -> Iterator[str]:
    """Run vLLM's server for as long as the block lasts, in bfloat16; it keeps no prompt for later.

    Raises `RuntimeError` if it did not start. ``model``: a Hugging Face directory. ``streams``: most sequences in a
    step. ``max_tokens``: most tokens of a request, prompt and response. Yields its URL, without ``/v1``.
    """
    (port,) = free_ports(1)
    command = [
        *(str(vllm_python()), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)),
        *("--host", "127.0.0.1", "--port", str(port), "--dtype", "bfloat16", "--no-enable-prefix-caching"),
        *("--max-num-seqs", str(streams), "--max-model-len", str(max_tokens + 1)),
    ]
    environment = os.environ | {"VLLM_CPU_KVCACHE_SPACE": str(_CACHE_GIB), "HF_HUB_OFFLINE": "1"}
    with running(command, f"http://127.0.0.1:{port}", environment, _START_SECONDS) as url:
        yield url
