"""Answers prompts with mistral.rs; runs in its own environment (`mistral.py` starts it).

Reads a line of JSON for each prompt: ``[text, tokens to generate]``, and answers with one: ``[prompt tokens, seconds,
generated tokens, seconds]``, as mistral.rs counts them. Its runner takes one request at a time.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import mistralrs


def respond(runner: Any, prompt: str, tokens: int) -> list[float]:
    """Answer one prompt greedily, with exactly this many tokens."""
    request = mistralrs.CompletionRequest(
        model="default", prompt=prompt, max_tokens=tokens, temperature=0.0, top_k=1, ignore_eos=True
    )
    usage = runner.send_completion_request(request).usage
    return [
        usage.prompt_tokens,
        usage.total_prompt_time_sec,
        usage.completion_tokens,
        usage.total_completion_time_sec,
    ]


def main() -> None:
    """Serve until standard input ends."""
    model = Path(sys.argv[1])
    responses = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the library prints is no response
    which = mistralrs.Which.GGUF(quantized_model_id=str(model.parent), quantized_filename=model.name)
    runner = mistralrs.Runner(which=which, max_seqs=1, prefix_cache_n=0)
    for line in sys.stdin:
        prompt, tokens = json.loads(line)
        print(json.dumps(respond(runner, prompt, tokens)), file=responses, flush=True)


if __name__ == "__main__":
    main()
