"""ik_llama.cpp: its own benchmark program for streams, with its flash kernel and weights repacked at run time."""

import subprocess
from pathlib import Path

from tools.bench.peers.llama_cpp import CACHE_TYPES
from tools.bench.peers.places import ik_tool, thread_count

_LIMIT = 600  # seconds
_PROMPTS, _RESPONSES = 5, 7  # columns of what it prints, in tokens/s


def rates(model: Path, streams: int, prompt_len: int, output_len: int, cache_bits: int = 16) -> tuple[float, float]:
    """Return the tokens/s of the streams' prompts, and of what they generate after them.

    Parameters
    ----------
    model
        A GGUF file.
    streams, prompt_len, output_len
        Sequences at a time, and their tokens.
    cache_bits
        Of keys and values: 16, 8 or 4.

    Raises
    ------
    RuntimeError
        It failed, ran too long or printed no results.
    """
    cache = CACHE_TYPES[cache_bits]
    command = [
        *(str(ik_tool("llama-batched-bench")), "-m", str(model), "-t", str(thread_count())),
        *("-npp", str(prompt_len), "-ntg", str(output_len), "-npl", str(streams)),
        *("-c", str(streams * (prompt_len + output_len)), "-fa", "on", "-rtr", "-ctk", cache, "-ctv", cache),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT, check=False)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"ik_llama.cpp ran longer than {_LIMIT} s") from None
    for line in done.stdout.splitlines() + done.stderr.splitlines():
        cells = [cell.strip() for cell in line.strip("| \n").split("|")]
        if line.startswith("|") and cells[0].isdecimal():
            return float(cells[_PROMPTS]), float(cells[_RESPONSES])
    raise RuntimeError(f"ik_llama.cpp ended with {done.returncode} and no results:\n{done.stderr[-2000:]}")
