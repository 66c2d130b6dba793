"""Measure what each format of weights and of the KV cache loses, alongside the same model in float32.

``python tools/evaluate.py MODEL`` writes a table of Markdown: perplexity of texts, how far the next token's
distribution is from float32's, and the share of right answers to tasks that need no download. It ends with 1 if a
format loses more than its bound (``tools/evaluation/formats.py``). ``--help`` lists the flags.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.bench import arguments
from tools.evaluation.command import main

if __name__ == "__main__":
    arguments.run(main)
