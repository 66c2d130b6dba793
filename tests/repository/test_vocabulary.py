"""Sources and documents use the field's terms, so that an engineer finds things by their usual names."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# A home-made term, as a regular expression of whole words, and what the field says instead.
BANNED = {
    r"pictures?": "image",
    r"films?": "video",
    r"thoughts": "reasoning",
    r"guess(es|ed|ing)?": "draft, drafted, drafting",
    r"beside": "alongside, next to, compared with",
    r"so many": "this many, up to N",
    r"told|tells": "reports, logs, says, distinguishes",
    r"sights": "kv_len",
    r"models? that sees?": "vision-language model",
    r"(is|are|not) made smaller|mak(e|ing) (a|the) model smaller": "quantize",
    r"rehears\w*": "warm-up, dry run",
    r"un?servable|unserved": "unsupported",
    r"servable": "resolved model",
    r"patience": "timeout",
    r"on trial": "self-check",
    r"comes? apart": "is separate",
    r"figures?": "metrics, measurements",
    r"notations?": "format",
    r"kMost\w*": "kMax...",
    r"makes? no sense": "is invalid",
    r"goes on|went on": "continues, continued",
    r"likeliest": "most likely, top",
    r"anew": "again",
    r"put aside|for ever|by heart|in the midst": "preempted, forever, hard-coded, in the middle",
    r"come about|comes about": "occur",
    r"one behind|behind (the last|them|these|those)": "one past the end, after",
    r"rows of (a )?batch(es)?": "requests of a batch; tokens of a step",
    r"an answer|(whole|streamed|running|open) answers?|answers to (a|one|the) prompt": "response, output",
    r"is reported (him|them|it)|notified of (it|them|him)": "say who gets what",
}
# Where a term is right: names that others define, prose of test data, the table of renamed names.
ALLOWED = {
    "CHANGELOG.md": r".*",
    "LICENSE": r".*",
    "CONTRIBUTING.md": r"pictures",
    "docs/reference/renamed.md": r".*",
    "lmdeploy/renamed.py": r".*",
    "tests/unit/test_renamed.py": r".*",
    "tests/repository/test_vocabulary.py": r".*",
    "lmdeploy/lite/calibration.txt": r".*",
    "model_repository/ensemble_pictures/": r".*",
    "tests/data/": r".*",
    "backend_cpp/fuzz/corpus/": r".*",
    "tests/abuse/corpus.json": r".*",
    "tools/bench/workload.py": r"told|tell",
    "tools/evaluation/texts.txt": r"told|tells|patience|went on",
    "tests/webui/test_foreign_hosts.py": r"picture",  # HTML's element
    "tests/unit/test_convert.py": r"pictures",
    "tests/engine/test_vision_models.py": r"picture",  # a prompt after which no random model writes image tokens
    "tools/gpu_check/__main__.py": r"rehearse",
    "tools/bench/compare.py": r"patience",
    # What a question of a task gets, and what a model writes after its reasoning.
    "lmdeploy/evaluation/": r"an answer",
    "lmdeploy/templates/thinking.py": r"an answer",
    "openai_gateway/reasoning": r"(an|whole) answer",
    "tools/evaluation/": r"an answer",
    "tools/passkey.py": r"an answer",
}
_ANY = re.compile("|".join(BANNED), re.IGNORECASE)  # most lines have none: one search instead of one a term
_TERM = {re.compile(rf"(?<![A-Za-z])(?:{term})(?![A-Za-z])", re.IGNORECASE): said for term, said in BANNED.items()}


def _files() -> list[str]:
    found = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True)
    return [name for name in found.stdout.splitlines() if (ROOT / name).is_file()]


def home_made(name: str, text: str) -> list[str]:
    """Return a line for each home-made term of a file: where it is, and the term of the field."""
    allowed = [pattern for place, pattern in ALLOWED.items() if name.startswith(place)]
    lines = []
    for number, line in enumerate(text.splitlines(), 1):
        if _ANY.search(line) is None:
            continue
        for term, said in _TERM.items():
            lines += [
                f"{name}:{number}: {match[0]!r}: say {said}"
                for match in term.finditer(line)
                if not any(re.fullmatch(pattern, match[0], re.IGNORECASE) for pattern in allowed)
            ]
    return lines


@pytest.mark.parametrize("term", ["a picture", "is told", "SERVABLE", "the_pictures_of", "kMostRows"])
def test_home_made_terms_are_found(term: str) -> None:
    assert home_made("lmdeploy/x.py", f"first\n{term}\n")[0].startswith("lmdeploy/x.py:2: ")


def test_names_and_texts_use_the_fields_terms() -> None:
    found = []
    for name in _files():
        found += home_made(name, name) if not any(name.startswith(place) for place in ALLOWED) else []
        try:
            found += home_made(name, (ROOT / name).read_text(encoding="utf-8"))
        except UnicodeDecodeError:
            continue  # an image
    assert not found, f"{len(found)} home-made terms:\n" + "\n".join(found[:200])
