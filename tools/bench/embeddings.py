"""Texts a second of all-MiniLM-L6-v2, our engine alongside its peers, in turns: ``python -m tools.bench embeddings``.

Lengths are a mix as of questions and paragraphs, 8 to 250 tokens. Peers that ``make peers`` has not installed are left
out; all have the same weights. All but llama.cpp run as sentence-transformers does: texts by length, 32 at a time,
padded to the longest of these. llama-server is asked over HTTP, for all texts in one request. Vectors are compared with
torch's in float32.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np

import lmdeploy
from lmdeploy.serve.ports import free_ports
from tools.bench.peers.install import llama_sources
from tools.bench.peers.paths import embedders, llama_tool, root, thread_count
from tools.bench.report import table
from tools.bench.server import running
from tools.bench.stats import median
from tools.bench.turns import take_turns
from tools.default_embedder import make

Embed = Callable[[Sequence[str]], Any]  # texts to vectors [texts, numbers]

_BATCH = 32  # sentence-transformers' default
_INPUTS = ("input_ids", "attention_mask")
_KINDS: dict[str, dict[str, Any]] = {"float32": {}, "bfloat16": {"dtype": "bfloat16"}, "8 bits": {"weight_bits": 8}}
_GGUF_TYPES = {"f32": "float32", "bf16": "bfloat16", "q8_0": "8 bits"}


def peers_of(model: Path) -> dict[str, AbstractContextManager[Embed]]:
    """Return the peers that are installed, by name."""
    found: dict[str, AbstractContextManager[Embed]] = {}
    found |= {f"torch, {dtype}": torch_peer(model, dtype) for dtype in ("float32", "bfloat16")}
    if embedders().is_dir() and str(embedders()) not in sys.path:
        sys.path.append(str(embedders()))  # after this environment's own packages
    if importlib.util.find_spec("openvino") is not None:
        found |= {f"OpenVINO, {kind}": openvino_peer(model, kind) for kind in ("f32", "bf16")}
    if llama_tool("llama-server").exists():
        found |= {f"llama.cpp, {name}": llama_peer(model, kind) for kind, name in _GGUF_TYPES.items()}
    return found


def _batched(tokenizer: Any, run: Callable[[Any], Any]) -> Embed:
    """Return an embedder of texts in batches sorted by length: means over tokens that are no padding."""

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


def llama_gguf(model: Path, kind: str) -> Path:
    """Return the GGUF file of an encoder with weights of a type of GGUF, made by llama.cpp's own converter."""
    file = root() / "models" / f"{model.name}-{kind}.gguf"
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        sources = llama_sources()
        command = [sys.executable, str(sources / "convert_hf_to_gguf.py"), str(model), "--outfile", str(file)]
        environment = os.environ | {"PYTHONPATH": str(sources / "gguf-py")}
        subprocess.run([*command, "--outtype", kind], check=True, env=environment, capture_output=True)
    return file


@contextmanager
def llama_peer(model: Path, kind: str) -> Iterator[Embed]:
    """llama-server with weights of a type of GGUF."""
    file = llama_gguf(model, kind)
    (port,) = free_ports(1)
    sizes = {"-t": thread_count(), "-np": _BATCH, "-c": _BATCH * 512, "-b": 4096, "-ub": 4096}
    options = [text for flag, size in sizes.items() for text in (flag, str(size))]
    command = [str(llama_tool("llama-server")), "-m", str(file), "--host", "127.0.0.1", "--port", str(port), *options]
    command += ["--embeddings", "--pooling", "mean", "--no-webui"]
    with running(command, f"http://127.0.0.1:{port}") as url, httpx.Client(timeout=600, trust_env=False) as client:

        def embed(texts: Sequence[str]) -> Any:
            response = client.post(f"{url}/v1/embeddings", json={"input": list(texts)}).raise_for_status()
            return np.array([entry["embedding"] for entry in response.json()["data"]], np.float32)

        yield embed


@contextmanager
def embedder(model: Path, **settings: Any) -> Iterator[Embed]:
    """Our engine."""
    config = lmdeploy.TurbomindEngineConfig(**settings)
    with lmdeploy.pipeline(str(model), backend_config=config) as pipe:
        yield pipe.embed


def mixed_texts(model: Path, count: int) -> list[str]:
    """Return texts of words of the vocabulary: three of five short as questions are, the others paragraphs."""
    words = [word for word in (model / "vocab.txt").read_text().split() if word.isalpha() and word.isascii()]
    rng = np.random.default_rng(11)
    lengths = np.where(rng.random(count) < 0.6, rng.integers(8, 41, count), rng.integers(41, 251, count))
    return [" ".join(rng.choice(words, int(length) - 2)) for length in lengths]


def _rate(embed: Embed, texts: Sequence[str]) -> float:
    begin = time.perf_counter()
    embed(texts)
    return len(texts) / (time.perf_counter() - begin)


def main() -> None:
    """Measure in turns, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--texts", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to this file too")
    given = parser.parse_args()
    model = make()
    texts = mixed_texts(model, given.texts)
    runners = {f"ours, {name}": embedder(model, **settings) for name, settings in _KINDS.items()} | peers_of(model)
    with ExitStack() as stack:
        opened = {name: stack.enter_context(runner) for name, runner in runners.items()}
        vectors = {name: embed(texts[:100]) for name, embed in opened.items()}
        sides = {name: partial(_rate, embed, texts) for name, embed in opened.items()}
        rates = {name: median(found) for name, found in take_turns(sides, given.rounds, "{:.1f}".format).items()}
    exact = vectors["torch, float32"]
    cosines = {name: float(np.sum(found * exact, axis=1).min()) for name, found in vectors.items()}
    print(table(("engine", "texts/s", "least cosine"), [[n, f"{rates[n]:.1f}", f"{cosines[n]:.7f}"] for n in rates]))
    if given.json:
        given.json.write_text(json.dumps({"texts_per_second": rates, "least_cosine": cosines}, indent=1))
