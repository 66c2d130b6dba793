"""Model interface of evaluation harnesses."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lmdeploy.messages import GenerationConfig
from lmdeploy.offline.pipeline import pipeline

_MAX_LOGITS = 2**27  # numbers of one batch that is scored: 512 MiB


class ScoredModel:
    """A pipeline that scores and continues texts.

    Parameters
    ----------
    model_path
        As for ``pipeline``.
    settings
        Keyword arguments of ``pipeline``: ``backend``, and fields of the engine's config by name.
    """

    def __init__(self, model_path: str, settings: Mapping[str, Any]) -> None:
        self.pipe = pipeline(model_path, **settings)
        self.tokenizer = self.pipe.tokenizer
        self.max_tokens = self.pipe.session_len - 1  # of a text that is scored

    def close(self) -> None:
        """Free the model."""
        self.pipe.close()

    @property
    def beginning(self) -> int:
        """The token that is before a text that nothing is before: bos, else eos.

        Raises
        ------
        ValueError
            The tokenizer has neither.
        """
        for token in (self.tokenizer.bos_token_id, self.tokenizer.eos_token_id):
            if token is not None:
                return token
        raise ValueError("the model has neither bos nor eos token, so a text without context cannot be scored")

    def pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Return the tokens of a context and of what follows it, as they are when both are one text.

        Blanks at the end of the context count as the continuation's: most tokenizers write them at the beginning of
        words.
        """
        if not context:
            return [self.beginning], self.tokenizer.encode(continuation, add_bos=False)
        kept = context.rstrip() or context
        before = self.tokenizer.encode(kept)
        return before, self.tokenizer.encode(context + continuation)[len(before) :]

    def score(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[tuple[float, bool]]:
        """Return how likely continuations are.

        Parameters
        ----------
        pairs
            Tokens of the context, at least one, and of the continuation. Contexts that are too long lose their
            beginnings.

        Returns
        -------
        list[tuple[float, bool]]
            Of each the sum of the log-probabilities of its tokens, and whether each was the most likely.

        Raises
        ------
        ValueError
            A continuation alone is longer than the session.
        """
        texts = []
        for context, continuation in pairs:
            if len(continuation) >= self.max_tokens:
                raise ValueError(
                    f"a continuation of {len(continuation)} tokens does not fit the session length, "
                    f"{self.pipe.session_len} tokens"
                )
            texts.append([*context, *continuation][-self.max_tokens :])
        lengths = [len(continuation) for _, continuation in pairs]
        found = []
        for begin, end in self._batches([len(text) for text in texts]):
            logits = self.pipe.get_logits(texts[begin:end])
            for text, rows, length in zip(texts[begin:end], logits, lengths[begin:end], strict=True):
                found.append(_score(text, rows, length))
        return found

    def score_text(self, text: str) -> float:
        """Return the sum of the log-probabilities of a text's tokens, each given as many before it as fit."""
        tokens = [self.beginning, *self.tokenizer.encode(text, add_bos=False)]
        return sum(total for total, _ in self.score(list(windows(tokens, self.max_tokens))))

    def generate(self, prompts: Sequence[str], configs: Sequence[GenerationConfig]) -> list[str]:
        """Return continuations of texts; a text that leaves no room for its answer loses its beginning."""
        fitting = [self._cut(prompt, config) for prompt, config in zip(prompts, configs, strict=True)]
        return [response.text for response in self.pipe(fitting, list(configs), do_preprocess=False)]

    def _cut(self, prompt: str, config: GenerationConfig) -> str:
        room = self.pipe.session_len - (config.max_new_tokens or 1)
        ids = self.tokenizer.encode(prompt)
        if len(ids) <= room:
            return prompt
        if room < 1:
            raise ValueError(
                f"max_new_tokens must be below the session length, {self.pipe.session_len}, got {config.max_new_tokens}"
            )
        return self.tokenizer.decode(ids[-room:], skip_special_tokens=False)

    def _batches(self, lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield first and last + 1 of texts whose logits are held at a time."""
        begin = max_length = 0
        for index, length in enumerate(lengths):
            wider = max(max_length, length)
            if index > begin and wider * (index - begin + 1) * self.pipe.engine.vocab_size > _MAX_LOGITS:
                yield begin, index
                begin, wider = index, length
            max_length = wider
        if lengths:
            yield begin, len(lengths)


def windows(tokens: Sequence[int], max_tokens: int) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """Yield contexts and continuations of at most ``max_tokens`` tokens together that score every token but the first.

    The last one has as much context as fits, the others one token.
    """
    done = 1
    while done < len(tokens):
        end = min(len(tokens), done + max_tokens - 1)
        yield tokens[max(0, end - max_tokens) : done], tokens[done:end]
        done = end


def _score(text: Sequence[int], logits: Any, length: int) -> tuple[float, bool]:
    """Return the log-probability of a text's last tokens, ``length`` of them, and whether all were the most likely."""
    import torch

    targets = torch.tensor(text[len(text) - length :], dtype=torch.long)
    rows = torch.log_softmax(logits[len(text) - length - 1 : len(text) - 1].float(), dim=-1)
    chosen = rows.gather(1, targets[:, None])
    return chosen.sum(dtype=torch.float64).item(), bool((rows.argmax(-1) == targets).all())
