# Types of the compiled module (backend_cpp/python/module.cc).
from typing import Any

class EngineUnavailable(RuntimeError): ...

class Engine:
    session_len: int
    vocab_size: int
    hidden_size: int
    def __init__(self, directory: str, settings_json: str) -> None: ...
    def submit(self, input_ids: list[int], params: dict[str, Any]) -> int: ...
    def cancel(self, request: int) -> None: ...
    def poll(self, timeout: float) -> list[dict[str, Any]]: ...
    def stats(self) -> dict[str, float]: ...
    def close(self) -> None: ...

def supported_isas() -> list[str]: ...
def select_isa(name: str) -> None: ...
def current_isa() -> str: ...
def available_cpu_count() -> int: ...
def read_tensor(directory: str, name: str, shape: list[int], values: int, /) -> None: ...
def multiply_codes(directory: str, name: str, shape: list[int], x: int, rows: int, y: int, /) -> bool: ...
def linear(
    x: int,
    rows: int,
    weight: int,
    dtype: int,
    out_features: int,
    in_features: int,
    bias: int,
    y: int,
    accumulate: bool,
    /,
) -> None: ...
def rounded_linear(
    x: int, rows: int, w: int, bits: int, group: int, out_features: int, in_features: int, y: int, /
) -> None: ...
def scaled_linear(
    x: int,
    rows: int,
    codes: int,
    is_float8: bool,
    scales: int,
    block_outputs: int,
    block_inputs: int,
    out_features: int,
    in_features: int,
    bias: int,
    y: int,
    /,
) -> None: ...
def norm(x: int, is_layer_norm: bool, weight: int, bias: int, eps: float, rows: int, size: int, y: int, /) -> None: ...
def activate(x: int, activation: int, is_gated: bool, rows: int, size: int, y: int, /) -> None: ...
def rope(
    x: int,
    cosine: int,
    sine: int,
    pairs: int,
    is_interleaved: bool,
    rows: int,
    heads: int,
    head_dim: int,
    factors: int,
    /,
) -> None: ...
def scale_and_cap(scale: float, softcap: float, rows: int, size: int, x: int, /) -> None: ...
def argmax(logits: int, size: int, /) -> int: ...
def attention(
    q: int,
    k: int,
    v: int,
    pool: int,
    cache_bits: int,
    sizes: tuple[int, int, int, int, int],
    spans: list[tuple[int, int, int, list[int]]],
    softcap: float,
    window: int,
    alibi_slopes: int,
    sinks: int,
    out: int,
    /,
) -> None: ...
def cache_block_bytes(cache_bits: int, num_kv_heads: int, key_dim: int, value_dim: int, block_len: int, /) -> int: ...
def route(
    logits: int,
    rows: int,
    num_experts: int,
    top_k: int,
    scores: int,
    mixer_jitter: float,
    num_groups: int,
    top_groups: int,
    group_score: int,
    choice_bias: int,
    normalize: bool,
    scale: float,
    experts: int,
    weights: int,
    /,
) -> None: ...
def experts(
    x: int,
    rows: int,
    gate_up: int,
    down: int,
    num_experts: int,
    size: int,
    hidden: int,
    bits: int,
    group: int,
    top_k: int,
    activation: int,
    chosen: int,
    weights: int,
    y: int,
    /,
) -> None: ...
def head_linear(
    x: int, rows: int, heads: int, out_features: int, in_features: int, w: int, dtype: int, y: int, /
) -> None: ...
