"""The model ``lmdeploy`` of lm-eval (EleutherAI's harness, 0.4.9 and later): a pipeline in this process."""

from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model

from lmdeploy.evaluation.scored_model import ScoredModel
from lmdeploy.messages import GenerationConfig

_LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")  # names tasks use
_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


@register_model("lmdeploy")
class PipelineLM(LM):
    """A pipeline as lm-eval uses a model.

    Parameters
    ----------
    pretrained
        The model, as for ``pipeline``.
    max_gen_toks
        Most tokens of an answer where the task does not say.
    batch_size, device
        What lm-eval's command line gives every model; the engine makes batches itself and runs where it can.
    max_batch_size
        Most sequences in a step.
    settings
        ``backend``, and fields of the engine's config by name: ``quant_policy=8``, ``session_len=4096``, ...
    """

    def __init__(
        self,
        pretrained: str = "",
        max_gen_toks: int = 256,
        batch_size: int | str | None = None,
        device: str | None = None,
        max_batch_size: int | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        if max_batch_size is not None:
            settings["max_batch_size"] = max_batch_size
        self._name = pretrained
        self._max_gen_toks = max_gen_toks
        self._model = ScoredModel(pretrained, settings)

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Return for each context and continuation the log-probability, and whether it is the greedy one."""
        return self._model.score([self._model.pair(*request.args) for request in requests])

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Return the log-probability of whole texts."""
        return [self._model.score_text(request.args[0]) for request in requests]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Return continuations of contexts, up to the task's stop strings."""
        configs = [self._config(request.args[1]) for request in requests]
        return self._model.generate([request.args[0] for request in requests], configs)

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Return a conversation as the model's chat template writes it."""
        return self._model.pipe.chat_template.render(chat_history, None, add_generation_prompt)

    def chat_template(self, chat_template: bool | str = False) -> str:
        """Return the model's template as lm-eval notes it in its results; it is always the model's own."""
        template = self._model.tokenizer.chat_template
        return template if isinstance(template, str) else ""

    @property
    def tokenizer_name(self) -> str:
        """By which lm-eval distinguishes its caches of requests."""
        return self._name.replace("/", "__")

    def _config(self, options: dict[str, Any]) -> GenerationConfig:
        """Return the generation config of a task's options.

        Raises
        ------
        ValueError
            An option has no counterpart.
        """
        given = dict(options)
        until = given.pop("until", None) or []
        lengths = [int(given.pop(name)) for name in _LENGTHS if name in given]
        sampling = {name: given.pop(name) for name in _SAMPLING if name in given}
        do_sample = bool(given.pop("do_sample", sampling.get("temperature", 0) > 0))
        if given:
            raise ValueError(f"generation options that the model lmdeploy does not have: {', '.join(sorted(given))}")
        return GenerationConfig(
            max_new_tokens=lengths[0] if lengths else self._max_gen_toks,
            stop_words=[until] if isinstance(until, str) else list(until),
            do_sample=do_sample,
            **(sampling if do_sample else {}),
        )
