"""Compile every kernel for a compute capability.

Prints a line each: module, kernel, bytes spilled, registers a thread, bytes of shared memory.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.nvidia.compiler import get_ptxas
from triton.runtime.jit import JITFunction

from lmdeploy.pytorch.kernels.awq_linear import awq_linear
from lmdeploy.pytorch.kernels.cache_layout import cache_channels
from lmdeploy.pytorch.kernels.decoding_attention import decoding_attention
from lmdeploy.pytorch.kernels.fill_cache import fill_cache
from lmdeploy.pytorch.kernels.fp8_linear import fp8_linear, quantize_rows_fp8
from lmdeploy.pytorch.kernels.fused_moe import fused_moe
from lmdeploy.pytorch.kernels.gated_activation import gelu_and_mul
from lmdeploy.pytorch.kernels.int8_linear import int8_linear, quantize_rows_int8
from lmdeploy.pytorch.kernels.prompt_attention import prompt_attention
from lmdeploy.pytorch.kernels.rms_norm import rms_norm
from lmdeploy.pytorch.kernels.rotary import apply_rotary
from tests.support.triton_target import TargetDriver

CAPABILITY = int(sys.argv[1])
TYPE = torch.bfloat16


def compile_only(function: JITFunction, *args: Any, **options: Any) -> Any:
    """Stand in for `JITFunction.run`."""
    options.pop("warmup", None)
    kernel = launch(function, *args, warmup=True, **options)
    report(function, kernel)
    return kernel


def report(function: JITFunction, kernel: Any) -> None:
    """Print what the assembler says."""
    with tempfile.NamedTemporaryFile(suffix=".ptx") as file:
        Path(file.name).write_text(kernel.asm["ptx"])
        arch = re.search(r"\.target (sm_\w+)", kernel.asm["ptx"]).group(1)
        done = subprocess.run(
            [get_ptxas(CAPABILITY).path, "-v", f"-arch={arch}", file.name, "-o", "/dev/null"],
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    spilled = re.search(r"(\d+) bytes spill stores", done.stderr).group(1)
    registers = re.search(r"Used (\d+) registers", done.stderr).group(1)
    print(function.fn.__module__.rpartition(".")[2], function.fn.__name__, spilled, registers, kernel.metadata.shared)


def attention(bits: int, dim: int, heads: int, kv_heads: int, **rule: Any) -> None:
    spans, blocks, block_len = 3, 8, 64
    rows = torch.zeros(spans, dtype=torch.int64)
    shape = (blocks, block_len, kv_heads, cache_channels(dim, bits))
    cache = torch.zeros(shape, dtype=TYPE if bits == 16 else torch.uint8)
    scales = None if bits == 16 else torch.zeros(*shape[:3], 2, dtype=torch.float16)
    table = torch.zeros(spans, 4, dtype=torch.int64)
    stored = {"k_scales": scales, "v_scales": scales, "bits": bits}
    key = torch.zeros(100, kv_heads, dim, dtype=TYPE)
    fill_cache(key, key, cache, cache, torch.zeros(100, dtype=torch.int64), **stored)
    query = torch.zeros(100, heads, dim, dtype=TYPE)
    prompt_attention(
        query, cache, cache, rows, rows, rows, table, max_q_len=100, v_dim=dim, scale=0.1, **stored, **rule
    )
    query = torch.zeros(spans, heads, dim, dtype=TYPE)
    decoding_attention(query, cache, cache, rows, table, v_dim=dim, scale=0.1, **stored, **rule)


def main() -> None:
    """Call every operator at sizes of models that are served."""
    attention(4, 128, 32, 8)
    attention(8, 64, 64, 8, window=128, sinks=torch.zeros(64))
    attention(16, 256, 16, 8, window=4096, softcap=50.0)
    x = torch.zeros(4, 8192, dtype=TYPE)
    weight = torch.zeros(4096, dtype=TYPE)
    rms_norm(x[:, :4096], weight, 1e-6, residual=x[:, 4096:])
    gelu_and_mul(x)
    angle = torch.zeros(4, 64)
    apply_rotary(x.view(4, 64, 128)[:, :32], x.view(4, 64, 128)[:, 32:], angle, angle)
    x = torch.zeros(64, 4096, dtype=TYPE)
    quantized, scales = quantize_rows_int8(x)
    int8_linear(quantized, scales, torch.zeros(4096, 4096, dtype=torch.int8), torch.zeros(4096), weight, dtype=TYPE)
    words = torch.zeros(4096, 512, dtype=torch.int32)
    awq_linear(x, words, words[:32], torch.zeros(32, 4096, dtype=torch.float16))
    if CAPABILITY >= 89:
        quantized, scales = quantize_rows_fp8(x)
        fp8_linear(
            quantized, scales, torch.zeros(4096, 4096, dtype=torch.float8_e4m3fn), torch.zeros(32, 32), dtype=TYPE
        )
    x = torch.zeros(64, 2048, dtype=TYPE)
    ids = torch.zeros(64, 8, dtype=torch.int64)
    experts = torch.zeros(16, 1536, 2048, dtype=TYPE), torch.zeros(16, 2048, 768, dtype=TYPE)
    fused_moe(x, *experts, torch.zeros(64, 8), ids)


triton.runtime.driver.set_active(TargetDriver(CAPABILITY))
launch = JITFunction.run
JITFunction.run = compile_only
with tempfile.TemporaryDirectory() as folder:
    triton.knobs.cache.dir = folder
    main()
