# Types of the compiled module (backend_cpp/python/module.cc).
from collections.abc import Sequence
from typing import Any

import numpy as np

class EngineUnavailable(RuntimeError): ...

class Engine:
    notes: list[str]
    session_len: int
    vocab_size: int
    hidden_size: int
    def __init__(
        self,
        directory: str,
        settings_json: str,
        worker: list[str] = ...,
        publisher: list[str] = ...,
        grammar: list[str] = ...,
    ) -> None: ...
    def submit(self, input_ids: list[int], params: dict[str, Any]) -> int: ...
    def cancel(self, request: int) -> None: ...
    def load_adapter(self, name: str, directory: str) -> None: ...
    def unload_adapter(self, name: str) -> None: ...
    def adapters(self) -> list[str]: ...
    def poll(self, timeout: float) -> list[dict[str, Any]]: ...
    def stats(self) -> dict[str, float]: ...
    def close(self) -> None: ...

def available_devices() -> list[str]: ...
def available_cpu_count() -> int: ...
def kernel_operators() -> list[dict[str, Any]]: ...
def requested_kernels(engine: str, name: str) -> str | None: ...
def model_program(spec_file: str) -> str: ...
def cpu_isas() -> list[str]: ...
def cpu_isa() -> str: ...

# ---- for processes that run a model (backend_cpp/python/bindings.h) ----

class OrderKind:
    LOAD: OrderKind
    ALLOCATE: OrderKind
    STEP: OrderKind
    SET_ADAPTER: OrderKind
    DROP_ADAPTER: OrderKind
    MOVE_BLOCKS: OrderKind

class Order:
    kind: OrderKind
    page_bytes: int
    block_count: int
    block_len: int
    host_block_count: int
    sequences: int
    sequence_blocks: int
    moves: int
    rows: int
    spans: int
    logit_rows: int
    choices: int
    area: int
    embedded: int
    has_grid: int
    slot: int
    directory: str

def inner_layer(name: str) -> str: ...
def read_adapter(
    directory: str,
) -> dict[str, tuple[np.ndarray[Any, np.dtype[np.float32]], np.ndarray[Any, np.dtype[np.float32]], float]]: ...

choice_dtype: np.dtype[np.void]  # of WorkerArea.choices

class WorkerArea:
    tokens: np.ndarray[Any, np.dtype[np.int32]]
    spans: np.ndarray[Any, np.dtype[np.int32]]
    blocks: np.ndarray[Any, np.dtype[np.int32]]
    embedded_tokens: np.ndarray[Any, np.dtype[np.int32]]
    embeddings: np.ndarray[Any, np.dtype[np.float32]]
    grid_positions: np.ndarray[Any, np.dtype[np.int32]]
    choices: np.ndarray[Any, np.dtype[np.void]]
    lists: np.ndarray[Any, np.dtype[np.int32]]
    chosen: np.ndarray[Any, np.dtype[np.int32]]
    logprobs: np.ndarray[Any, np.dtype[np.float32]]
    top_tokens: np.ndarray[Any, np.dtype[np.int32]]
    top_logprobs: np.ndarray[Any, np.dtype[np.float32]]

class WorkerChannel:
    logits: np.ndarray[Any, np.dtype[np.float32]]
    hidden: np.ndarray[Any, np.dtype[np.float32]]
    def __init__(self, fd: int, rank: int) -> None: ...
    def wait(self, seconds: float) -> tuple[int, Order] | None: ...
    def finish(self, number: int, has_failed: bool, text: str) -> None: ...
    def area(self, index: int) -> WorkerArea: ...

_Rows = tuple[int, int]
_Heads = tuple[int, int, int, int, int, int]

class LinearWeight:
    def __init__(
        self, data: int, type: str, out_features: int, in_features: int, bias: int, is_tiled: bool
    ) -> None: ...

class QuantizedCheckpoint:
    def __init__(self, directory: str) -> None: ...
    def read(self, name: str, out_features: int, in_features: int, y: int) -> None: ...

class QuantizedLinear:
    def __init__(
        self,
        checkpoint: QuantizedCheckpoint,
        outputs: Sequence[tuple[str, tuple[int, int, int]]],
        inputs: tuple[int, int, int],
        bias: int,
    ) -> None: ...
    @property
    def weight(self) -> LinearWeight: ...
    @property
    def is_packed(self) -> bool: ...

class PageArena:
    def __init__(self, page_bytes: int, page_count: int) -> None: ...
    def move(self, moves: np.ndarray[Any, np.dtype[np.int32]]) -> None: ...

class LayerCache:
    def __init__(
        self, arena: PageArena, offset: int, type: str, heads: int, key_dim: int, value_dim: int, block_len: int
    ) -> None: ...

class LayerState:
    def __init__(self, arena: PageArena, page: int, offset: int) -> None: ...

def cache_block_bytes(type: str, heads: int, key_dim: int, value_dim: int, block_len: int) -> int: ...

class CpuKernels:
    def __init__(self, threads: int) -> None: ...
    def set_spans(
        self, spans: np.ndarray[Any, np.dtype[np.int32]], blocks: np.ndarray[Any, np.dtype[np.int32]], block_len: int
    ) -> None: ...
    def attention(
        self,
        cache: LayerCache,
        q: _Heads,
        k: _Heads,
        v: _Heads,
        out: int,
        softcap: float,
        window: int,
        sinks: int,
        alibi_slopes: int,
    ) -> None: ...
    def linear(self, weight: LinearWeight, x: int, rows: int, y: int) -> None: ...
    def rms_norm(self, weight: int, eps: float, x: int, rows: int, size: int, y: int) -> None: ...
    def embed(self, table: LinearWeight, tokens: int, rows: int, y: int) -> None: ...
    def set_states(
        self, spans: np.ndarray[Any, np.dtype[np.int32]], blocks: np.ndarray[Any, np.dtype[np.int32]], page_count: int
    ) -> None: ...
    def rms_norm_heads(self, weight: int, eps: float, heads: _Heads) -> None: ...
    def rope(self, cosine: _Rows, sine: _Rows, pairs: int, is_interleaved: bool, q: _Heads, k: _Heads) -> None: ...
    def silu_and_mul(self, gate_up: int, rows: int, size: int, y: int) -> None: ...
    def silu_gate(self, gate: _Heads, x: _Heads) -> None: ...
    # Fields of the operations in backend_cpp/kernels/recurrence.h; pointers are addresses.
    def causal_conv(self, *fields: object) -> None: ...
    def recurrence_gates(self, *fields: object) -> None: ...
    def recurrence(self, *fields: object) -> None: ...
