"""Experts that a GGUF file keeps one after another in a tensor: each as its own tensor."""

import re
from collections.abc import Mapping

from lmdeploy.turbomind.gguf.header import GgufTensor

_STACK = re.compile(r"(blk\.\d+\.ffn_(?:gate|up|gate_up|down))_exps\.(weight|bias)")
_DIMENSIONS = {"weight": 3, "bias": 2}


def apart(tensors: Mapping[str, GgufTensor]) -> dict[str, GgufTensor]:
    """Return the tensors with ``blk.N.ffn_gate_exps.weight [experts, out, in]`` as ``blk.N.ffn_gate.E.weight``.

    So the oldest files of mixtures of experts name them, too.
    """
    found: dict[str, GgufTensor] = {}
    for name, tensor in tensors.items():
        stack = _STACK.fullmatch(name)
        if stack is None or len(tensor.shape) != _DIMENSIONS[stack[2]]:
            found[name] = tensor
            continue
        count, *shape = tensor.shape
        size = tensor.size // max(count, 1)
        for expert in range(count):
            own = GgufTensor(tensor.dtype, tuple(shape), tensor.offset + expert * size, size)
            found[f"{stack[1]}.{expert}.{stack[2]}"] = own
    return found
