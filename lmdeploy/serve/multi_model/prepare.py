"""Preparation of a requested model: write its engine directory, and estimate its memory.

``python -m lmdeploy.serve.multi_model.prepare`` does so for the JSON of a `RequestedModel` on standard input, and
prints the JSON of the `PreparedModel`; on failure one line on stderr, and exit status 1. Converting takes seconds and
hundreds of megabytes, which a serving process does not have to spare.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import fields
from pathlib import Path

from lmdeploy.extras import MissingExtraError
from lmdeploy.messages import TurbomindEngineConfig
from lmdeploy.model import name_for_older_clients
from lmdeploy.serve.multi_model.prepared import PreparedModel
from lmdeploy.serve.multi_model.requested import RequestedModel
from lmdeploy.serve.resolved_model import resolved_model
from lmdeploy.turbomind.engine_dir import EngineDir
from lmdeploy.turbomind.safetensors_index import read_checkpoint
from lmdeploy.turbomind.spec import ModelSpec

_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
_SCALE_BYTES = 3  # of a key or value that the cache rounds, as backend_cpp/kernels/paged_attention.h lays it out
_GROUP_BITS = 0.5  # of a rounded weight's scale (lmdeploy/capacity/plan.py)
_BATCH = {"cpu": 64, "cuda": 256}  # as backend_cpp/engine/load_engine.cc


def prepare(requested: RequestedModel, common_session_len: int | None = None) -> PreparedModel:
    """Return a model that can be loaded, converted where it was not yet.

    Raises `ValueError`, `OSError` or `MissingExtraError` if there is no such model, or the engine cannot run it.
    ``common_session_len``: what was asked for all models: one that has learned fewer positions gets these.
    """
    found = resolved_model(requested.path, requested.backend, requested.chat_template, requested.engine)
    made, engine = found.engine, dict(found.settings)
    positions = made.spec.learned_positions
    if 0 < positions < (engine.get("session_len") or 0) == common_session_len:
        engine["session_len"] = positions
    known = {field.name for field in fields(TurbomindEngineConfig)}
    config = TurbomindEngineConfig(**{name: value for name, value in engine.items() if name in known})
    device = _device(config.device)
    session = config.session_len or made.spec.max_position_embeddings
    batch = config.max_batch_size or _BATCH[device]
    return PreparedModel(
        name=requested.name,
        engine_dir=str(made.path),
        older_name=name_for_older_clients("", str(made.path), found.chat_template),
        chat_template=found.chat_template,
        engine=engine,
        device=device,
        weights=(_weight_bytes(made, config) + 2 * batch * _state_bytes(made.spec)) // config.tp,
        block=max(1, _block_bytes(made, config) // config.tp),
        max_blocks=batch * math.ceil(session / config.cache_block_seq_len),
        idle_timeout=requested.idle_timeout,
    )


def _device(requested: str) -> str:
    if requested != "auto":
        return requested
    from lmdeploy._turbomind import available_devices

    return available_devices()[-1]


def _weight_bytes(made: EngineDir, config: TurbomindEngineConfig) -> int:
    """Return the size of the weights, from their files."""
    manifest = made.path / "manifest.json"
    if manifest.is_file():
        content = json.loads(manifest.read_text(encoding="utf-8"))
        files = [manifest.parent / name for name in content["files"]]
        is_quantized_already = content["weight_format"] != "hf"
    else:
        checkpoint = Path(json.loads((made.path / "worker.json").read_text(encoding="utf-8"))["checkpoint"])
        files, is_quantized_already = read_checkpoint(checkpoint).files, False
    of_checkpoint = _BYTES.get(made.spec.dtype, 2)
    stored: int = sum(file.stat().st_size for file in files)
    if made.spec.ngrams is not None:  # tables that stay in the files
        stored -= made.spec.ngrams.table_size * of_checkpoint
    if is_quantized_already:
        return stored
    bits = config.weight_bits + _GROUP_BITS if config.weight_bits else 8 * _BYTES.get(config.dtype, of_checkpoint)
    return int(stored * bits / 8 / of_checkpoint)


def _block_bytes(made: EngineDir, config: TurbomindEngineConfig) -> int:
    """Return the size of a KV cache block (backend_cpp/kernels/paged_attention.h)."""
    spec = made.spec
    if spec.encoder is not None:  # it keeps nothing
        return 0
    is_float32 = (spec.dtype if config.dtype == "auto" else config.dtype) == "float32"
    a_token = 0.0
    for layer in range(spec.num_layers):
        if spec.compressed_attention is not None:
            a_token += spec.compressed_attention.sizes(layer, spec.head_dim)[1] * (4 if is_float32 else 2)
        if not spec.has_attention(layer) or spec.keys_of(layer) >= 0:
            continue
        attention = spec.attention_of(layer)
        heads, numbers = attention.num_kv_heads, attention.head_dim + attention.value_dim
        if attention.mla is not None:
            heads, numbers = 1, attention.mla.rope_dim + 2 * attention.mla.kv_rank
        if config.quant_policy:
            a_token += heads * (numbers * config.quant_policy / 8 + 2 * _SCALE_BYTES)
        else:
            a_token += heads * numbers * (4 if is_float32 else 2)
    return int(a_token * config.cache_block_seq_len)


def _state_bytes(spec: ModelSpec) -> int:
    """Return the size of a sequence's state; there are as many snapshots (backend_cpp/engine/load_engine.cc)."""
    recurrence = spec.recurrence
    if recurrence is None:
        return 0
    values, keys = recurrence.num_heads * recurrence.value_dim, recurrence.num_key_heads * recurrence.key_dim
    numbers = (recurrence.conv_kernel - 1) * values
    if recurrence.kind != "short_convolution":
        numbers += (recurrence.conv_kernel - 1) * 2 * keys + values * recurrence.key_dim
    return _BYTES["float32"] * numbers * sum(map(spec.has_recurrence, range(spec.num_layers)))


def main() -> int:
    """Prepare the model on standard input; return the exit status."""
    try:
        print(prepare(RequestedModel.from_json(sys.stdin.read())).to_json())
    except (ValueError, OSError, MissingExtraError) as error:
        print(str(error).replace("\n", " "), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
