"""Stand-ins for the programs of other engines, in a cache folder of their own."""

import sys
from pathlib import Path

from tools.bench.peers.paths import GGUF_TYPES, IK_LLAMA, gguf, llama_tool, openvino_python

# Prints one line for each value of -fa, between lines that are no results; flash attention is slower.
LLAMA_BENCH = """
import json, os, sys
flags = dict(zip(sys.argv[1::2], sys.argv[2::2]))
with open(os.environ["FAKE_PEERS_LOG"], "a") as log:
    print("llama-bench", flags["-p"], flags["-n"], flags["-d"], flags["-t"], file=log)
print("ggml: some news")
for attention in flags["-fa"].split(","):
    print(json.dumps({"flash_attn": attention, "avg_ts": 101.0 if attention == "off" else 100.0}))
"""
# Flash attention is faster here.
LLAMA_BATCHED_BENCH = """
import json, os, sys
flags = dict(zip(sys.argv[1::2], sys.argv[2::2]))
with open(os.environ["FAKE_PEERS_LOG"], "a") as log:
    print("llama-batched-bench", flags["-npl"], flags["-npp"], flags["-ntg"], flags["-c"], file=log)
print(json.dumps({"speed_pp": 900.0, "speed_tg": 300.0 if flags["-fa"] == "on" else 200.0}))
"""
# Prints an array after a line of news; repacked weights are faster.
IK_LLAMA_BENCH = """
import json, os, sys
flags = dict(zip(sys.argv[1::2], sys.argv[2::2]))
with open(os.environ["FAKE_PEERS_LOG"], "a") as log:
    print("ik", flags["-p"], flags["-n"], flags["-t"], flags["-rtr"], file=log)
print("ggml: some news")
print(json.dumps([{"avg_ts": 50.0}, {"avg_ts": 60.0}], indent=2))
"""
# Responses as genai_worker.py does: first token after 1 s, then a token every 0.1 s.
OPENVINO = """
import json, os, sys
for line in sys.stdin:
    requests = json.loads(line)["requests"]
    with open(os.environ["FAKE_PEERS_LOG"], "a") as log:
        print("openvino", len(requests), len(requests[0][0]), requests[0][1], file=log)
    print(json.dumps([[0.0, [[1 + 0.1 * i, 1] for i in range(n)]] for _, n in requests]), flush=True)
"""
FAILING = "import sys; sys.exit('no such processor')"


def write_program(path: Path, source: str) -> None:
    """Write a Python program that runs by its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{sys.executable}\n{source}", encoding="utf-8")
    path.chmod(0o755)


def install(model_path: Path) -> None:
    """Write all programs, and empty GGUF files of a model, where the tools look for them."""
    write_program(llama_tool("llama-bench"), LLAMA_BENCH)
    write_program(llama_tool("llama-batched-bench"), LLAMA_BATCHED_BENCH)
    write_program(llama_tool("llama-bench", IK_LLAMA), IK_LLAMA_BENCH)
    write_program(openvino_python(), OPENVINO)
    for bits in GGUF_TYPES:
        path = gguf(model_path, bits)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
