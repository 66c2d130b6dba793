"""mistral.rs, in a process of its own environment."""

from collections.abc import Iterator, Sequence
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
    """A runner that answers prompts; made by :func:`mistral`."""

    def __init__(self, process: Worker) -> None:
        self._process = process

    def answer(self, prompts: Sequence[str], tokens: int) -> list[Usage]:
        """Answer prompts, all at once, with exactly this many tokens each.

        Raises
        ------
        RuntimeError
            The process ended.
        """
        return [Usage(*used) for used in self._process.ask({"prompts": list(prompts), "tokens": tokens})]

    def prefill_rate(self, prompt: str) -> float:
        """Return the tokens/s of a prompt up to the first token."""
        (used,) = self.answer([prompt], 1)
        return used.prompt_tokens / used.prompt_seconds

    def decode_rate(self, prompts: Sequence[str], tokens: int) -> float:
        """Return the tokens/s of all responses together, their prompts excluded: the sum of their own rates."""
        return sum(used.tokens / used.seconds for used in self.answer(prompts, tokens))


@contextmanager
def mistral(model: Path, batch: int) -> Iterator[Mistral]:
    """Run it on a GGUF file for as long as the block lasts, with at most ``batch`` sequences in a step."""
    with worker("mistral.rs", mistral_python(), _WORKER, model, batch) as process:
        yield Mistral(process)
