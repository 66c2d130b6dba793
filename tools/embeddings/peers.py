"""Peers of the encoder benchmark: torch, OpenVINO, ONNX Runtime and llama.cpp, each with the same weights.

All but llama.cpp run as sentence-transformers does: texts by length, 32 at a time, padded to the longest of these.
fastembed runs ONNX Runtime on such batches. llama-server is asked over HTTP, for all texts in one request.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from lmdeploy.serve.ports import free_ports
from tools.bench.peers.places import LLAMA_PACKAGE, embedders, llama_tool, root, thread_count
from tools.bench.server import running

Embed = Callable[[Sequence[str]], Any]  # texts to vectors [texts, numbers]

_BATCH = 32  # sentence-transformers' default
_INPUTS = ("input_ids", "attention_mask")
_GGUF_TYPES = {"f32": "float32", "bf16": "bfloat16", "q8_0": "8 bits"}


def peers_of(model: Path) -> dict[str, AbstractContextManager[Embed]]:
    """Return the peers that are installed, by name."""
    found: dict[str, AbstractContextManager[Embed]] = {}
    found |= {f"torch, {dtype}": torch_peer(model, dtype) for dtype in ("float32", "bfloat16")}
    if embedders().is_dir() and str(embedders()) not in sys.path:
        sys.path.append(str(embedders()))  # after this environment's own packages
    if importlib.util.find_spec("openvino") is not None:
        found |= {f"OpenVINO, {kind}": openvino_peer(model, kind) for kind in ("f32", "bf16")}
    if importlib.util.find_spec("onnxruntime") is not None:
        found["ONNX Runtime, float32"] = onnx_peer(model)
    if llama_tool("llama-server").exists():
        found |= {f"llama.cpp, {name}": llama_peer(model, kind) for kind, name in _GGUF_TYPES.items()}
    return found


def _batched(tokenizer: Any, run: Callable[[Any], Any]) -> Embed:
    """Return what embeds texts by length, some at a time, and takes means over tokens that are no padding."""

    def embed(texts: Sequence[str]) -> Any:
        order = np.argsort([-len(text) for text in texts], kind="stable")
        found = np.zeros((len(texts), 384), np.float32)
        for begin in range(0, len(order), _BATCH):
            some = order[begin : begin + _BATCH]
            given = tokenizer([texts[i] for i in some], padding=True, truncation=True, max_length=256)
            arrays = {name: np.array(given[name], np.int64) for name in _INPUTS}
            mask = arrays["attention_mask"][..., None].astype(np.float32)
            means = (run(arrays) * mask).sum(axis=1) / mask.sum(axis=1)
            found[some] = means / np.linalg.norm(means, axis=1, keepdims=True)
        return found

    return embed


@contextmanager
def torch_peer(model: Path, dtype: str) -> Iterator[Embed]:
    """Torch through ``transformers``."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    network = AutoModel.from_pretrained(model, dtype=getattr(torch, dtype)).eval()

    def run(arrays: Any) -> Any:
        with torch.inference_mode():
            states = network(**{name: torch.from_numpy(array) for name, array in arrays.items()}).last_hidden_state
        return states.float().numpy()

    yield _batched(AutoTokenizer.from_pretrained(model), run)


@contextmanager
def openvino_peer(model: Path, precision: str) -> Iterator[Embed]:
    """OpenVINO, of the same weights."""
    import openvino
    import torch
    from transformers import AutoModel, AutoTokenizer

    network = AutoModel.from_pretrained(model, dtype=torch.float32, attn_implementation="eager").eval()
    example = {name: torch.ones(2, 16, dtype=torch.int64) for name in _INPUTS}
    converted = openvino.convert_model(network, example_input=example)
    compiled = openvino.compile_model(converted, "CPU", {"INFERENCE_PRECISION_HINT": precision})
    yield _batched(AutoTokenizer.from_pretrained(model), lambda arrays: compiled(arrays)[0])


@contextmanager
def onnx_peer(model: Path) -> Iterator[Embed]:
    """ONNX Runtime, of the same weights, with all its optimizations."""
    import onnxruntime
    import torch
    from torch.export import Dim
    from transformers import AutoModel, AutoTokenizer

    file = root() / "models" / f"{model.name}.onnx"
    if not file.is_file():
        network = AutoModel.from_pretrained(model, dtype=torch.float32, attn_implementation="eager").eval()
        example = tuple(torch.ones(2, 16, dtype=torch.int64) for _ in _INPUTS)
        shapes = {name: {0: Dim("texts"), 1: Dim("tokens")} for name in _INPUTS}
        file.parent.mkdir(parents=True, exist_ok=True)
        torch.onnx.export(
            network, example, file, input_names=_INPUTS, dynamic_shapes=shapes, dynamo=True, external_data=False
        )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = thread_count()
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    output = session.get_outputs()[0].name
    yield _batched(AutoTokenizer.from_pretrained(model), lambda arrays: session.run([output], arrays)[0])


@contextmanager
def llama_peer(model: Path, kind: str) -> Iterator[Embed]:
    """llama-server with weights of a type of GGUF, made by llama.cpp's own converter."""
    file = root() / "models" / f"{model.name}-{kind}.gguf"
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        name, version = LLAMA_PACKAGE
        sources = root() / f"{name.replace('-', '_')}-{version}" / "vendor" / "llama.cpp"
        command = [sys.executable, str(sources / "convert_hf_to_gguf.py"), str(model), "--outfile", str(file)]
        environment = os.environ | {"PYTHONPATH": str(sources / "gguf-py")}
        subprocess.run([*command, "--outtype", kind], check=True, env=environment, capture_output=True)
    (port,) = free_ports(1)
    sizes = {"-t": thread_count(), "-np": _BATCH, "-c": _BATCH * 512, "-b": 4096, "-ub": 4096}
    options = [text for flag, size in sizes.items() for text in (flag, str(size))]
    command = [str(llama_tool("llama-server")), "-m", str(file), "--host", "127.0.0.1", "--port", str(port), *options]
    command += ["--embeddings", "--pooling", "mean", "--no-webui"]
    with running(command, f"http://127.0.0.1:{port}") as url, httpx.Client(timeout=600, trust_env=False) as client:

        def embed(texts: Sequence[str]) -> Any:
            response = client.post(f"{url}/v1/embeddings", json={"input": list(texts)}).raise_for_status()
            return np.array([each["embedding"] for each in response.json()["data"]], np.float32)

        yield embed
