"""mistral.rs, in a process of its own environment."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tools.bench.peers.places import mistral_python
from tools.bench.peers.worker import Worker, worker

_WORKER = Path(__file__).with_name("mistral_worker.py")


@dataclass(frozen=True)
class Usage:
    """What a response took, as mistral.rs counts it: tokens, and seconds."""

    prompt_tokens: int
    prompt_seconds: float
    tokens: int
    seconds: float


class Mistral:
    """A runner that answers prompts, one at a time; made by :func:`mistral`."""

    def __init__(self, process: Worker) -> None:
        self._process = process

    def answer(self, prompt: str, tokens: int) -> Usage:
        """Answer a prompt with exactly this many tokens.

        Raises
        ------
        RuntimeError
            The process ended.
        """
        return Usage(*self._process.ask([prompt, tokens]))


@contextmanager
def mistral(model: Path) -> Iterator[Mistral]:
    """Run it on a GGUF file for as long as the block lasts."""
    with worker("mistral.rs", mistral_python(), _WORKER, model) as process:
        yield Mistral(process)
