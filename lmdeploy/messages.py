"""The data every layer speaks: generation and engine configs, and the response.

Fields and defaults are those of LMDeploy's documented API. A config checks itself when it is made: ``ValueError``
names the field, what was expected and what was given.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from lmdeploy import checks

if TYPE_CHECKING:
    import torch

LogitsProcessor = Callable[["torch.Tensor", "torch.Tensor"], "torch.Tensor"]
EXTRA_OUTPUTS = (None, "all", "generation")
QUANT_POLICIES = (0, 4, 8)
MODEL_FORMATS = (None, "hf", "meta_llama", "awq", "gptq", "fp8", "fbgemm_fp8", "compressed-tensors", "smooth_quant")
MAX_SEED = 2**64 - 1
MAX_INT32 = 2**31 - 1  # token counts travel as int32


@dataclass
class GenerationConfig:
    """How to generate an answer.

    Parameters
    ----------
    n
        Answers to one prompt, which then has a list of so many responses.
    max_new_tokens
        Most tokens to generate.
    do_sample
        False: greedy decoding, whatever the sampling fields say.
    top_p, top_k, min_p
        Keep the likeliest tokens: those that together have probability ``top_p`` (in (0, 1]), the first ``top_k`` (0 is
        all), those with at least ``min_p`` times the likeliest one's probability (in [0, 1]).
    temperature
        Divides the logits, >= 0; 0 is greedy.
    repetition_penalty
        > 0; a value over 1 discourages tokens that are already in the text.
    ignore_eos
        True: the model's own end-of-sequence tokens do not end the answer.
    random_seed
        Seed of this request's generator, 64 bits; default: drawn at random.
    stop_words
        Strings of any length that end the answer; they are not part of it.
    bad_words, bad_token_ids
        What is never generated.
    stop_token_ids
        Tokens that end the answer; they are not part of it.
    min_new_tokens
        Tokens during which nothing may end the answer.
    skip_special_tokens
        True: special tokens do not appear in the text.
    spaces_between_special_tokens
        Kept for compatibility: fast tokenizers, the only ones here, never add such spaces.
    logprobs
        Return the log probability of each token, and of so many likeliest ones beside it.
    response_format
        A JSON schema or a regular expression the answer has to match.
    logits_processors
        Functions ``(input_ids [tokens], logits [vocab]) -> logits [vocab]`` applied in turn before sampling.
    output_logits, output_last_hidden_state
        Return them too: of the generated tokens (``generation``), or of the prompt as well (``all``).
    presence_penalty, frequency_penalty
        In [-2, 2]: taken from the logit of a token of the answer so far, once, and for each time it is there.
    logit_bias
        Token id to what is added to its logit.

    Raises
    ------
    ValueError
        If a value is of the wrong type or out of range; NaN and infinity always are.
    """

    n: int = 1
    max_new_tokens: int = 512
    do_sample: bool = False
    top_p: float = 1.0
    top_k: int = 50
    min_p: float = 0.0
    temperature: float = 0.8
    repetition_penalty: float = 1.0
    ignore_eos: bool = False
    random_seed: int | None = None
    stop_words: list[str] | None = None
    bad_words: list[str] | None = None
    stop_token_ids: list[int] | None = None
    bad_token_ids: list[int] | None = None
    min_new_tokens: int | None = None
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    logprobs: int | None = None
    response_format: dict[str, Any] | None = None
    logits_processors: list[LogitsProcessor] | None = None
    output_logits: Literal["all", "generation"] | None = None
    output_last_hidden_state: Literal["all", "generation"] | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] | None = None

    def __post_init__(self) -> None:
        flags = ("do_sample", "ignore_eos", "skip_special_tokens", "spaces_between_special_tokens")
        checks.require(
            [
                checks.whole("n", self.n, 1),
                checks.whole("max_new_tokens", self.max_new_tokens, 1, MAX_INT32),
                checks.finite("top_p", self.top_p, above=0, high=1),
                checks.whole("top_k", self.top_k, 0, MAX_INT32),
                checks.finite("min_p", self.min_p, low=0, high=1),
                checks.finite("temperature", self.temperature, low=0),
                checks.finite("repetition_penalty", self.repetition_penalty, above=0),
                checks.finite("presence_penalty", self.presence_penalty, low=-2, high=2),
                checks.finite("frequency_penalty", self.frequency_penalty, low=-2, high=2),
                self._logit_bias_problem(),
                None if self.random_seed is None else checks.whole("random_seed", self.random_seed, 0, MAX_SEED),
                checks.strings("stop_words", self.stop_words),
                checks.strings("bad_words", self.bad_words),
                checks.token_ids("stop_token_ids", self.stop_token_ids),
                checks.token_ids("bad_token_ids", self.bad_token_ids),
                self._min_new_tokens_problem(),
                None if self.logprobs is None else checks.whole("logprobs", self.logprobs, 0),
                checks.one_of("output_logits", self.output_logits, EXTRA_OUTPUTS),
                checks.one_of("output_last_hidden_state", self.output_last_hidden_state, EXTRA_OUTPUTS),
                *(checks.flag(name, getattr(self, name)) for name in flags),
            ]
        )

    def _logit_bias_problem(self) -> str | None:
        if self.logit_bias is None:
            return None
        if not isinstance(self.logit_bias, dict):
            return f"logit_bias must be a dict of token id to number, got {self.logit_bias!r}"
        problems = (
            checks.whole("logit_bias token", token, 0, MAX_INT32) or checks.finite(f"logit_bias[{token}]", bias)
            for token, bias in self.logit_bias.items()
        )
        return next((problem for problem in problems if problem is not None), None)

    def _min_new_tokens_problem(self) -> str | None:
        if self.min_new_tokens is None:
            return None
        problem = checks.whole("min_new_tokens", self.min_new_tokens, 0)
        if problem is None and isinstance(self.max_new_tokens, int) and self.min_new_tokens > self.max_new_tokens:
            return f"min_new_tokens must be <= max_new_tokens {self.max_new_tokens}, got {self.min_new_tokens}"
        return problem


@dataclass
class TurbomindEngineConfig:
    """How the C++ engine runs a model.

    Parameters
    ----------
    dtype
        Type of the weights in memory: ``auto`` (the checkpoint's), ``float32``, ``float16``, ``bfloat16``.
    weight_bits
        4 or 8: matrices are rounded to so many bits while loading, which makes answers faster and a little less exact;
        None: they stay as ``dtype`` says. What the checkpoint holds in 8 or 4 bits stays as it is.
    model_format
        Layout of the checkpoint: ``hf``, ``meta_llama``, ``awq``, ``gptq``, ``fp8``, ``fbgemm_fp8``,
        ``compressed-tensors``, ``smooth_quant``; default: read from the checkpoint, which a given one must agree with.
    tp
        Devices one model is spread over (tensor parallelism): GPUs, or parts of the CPU's cores. Must divide the number
        of the model's heads.
    session_len
        Most tokens of a sequence, prompt and answer; default: what the model was made for.
    max_batch_size
        Most sequences in a step; default: chosen for the device.
    cache_max_entry_count
        Part of the free memory given to the KV cache, in (0, 1); from 1 on, the number of its blocks.
    cache_chunk_size
        Blocks the cache grows by; -1: all at once. On a CPU memory is taken page by page when first used, whatever
        this says.
    cache_block_seq_len
        Tokens in a block of the KV cache.
    enable_prefix_caching
        Reuse the cached blocks of equal prompt beginnings.
    quant_policy
        Bits of the KV cache: 0 (not quantized), 4 or 8.
    rope_scaling_factor
        Factor of dynamic NTK scaling; 0: as the model says.
    use_logn_attn
        Scale attention by the logarithm of the position.
    download_dir, revision
        Where to and which version, for a model that has to be downloaded.
    max_prefill_token_num
        Most prompt tokens in a step.
    num_tokens_per_iter
        Tokens of a step shared by prompts and answers; 0: chosen by the engine.
    max_prefill_iters
        Over 1: a step is made so large that no prompt takes more of them. 1: no such bound.
    device
        ``cpu``, ``cuda``, or ``auto``: a GPU where the build and the machine have one, else the CPU.

    Raises
    ------
    ValueError
        If a value is of the wrong type or out of range.
    """

    dtype: str = "auto"
    weight_bits: int | None = None
    model_format: str | None = None
    tp: int = 1
    session_len: int | None = None
    max_batch_size: int | None = None
    cache_max_entry_count: float = 0.8
    cache_chunk_size: int = -1
    cache_block_seq_len: int = 64
    enable_prefix_caching: bool = False
    quant_policy: int = 0
    rope_scaling_factor: float = 0.0
    use_logn_attn: bool = False
    download_dir: str | None = None
    revision: str | None = None
    max_prefill_token_num: int = 8192
    num_tokens_per_iter: int = 0
    max_prefill_iters: int = 1
    device: str = "auto"

    def __post_init__(self) -> None:
        checks.require(
            [
                checks.one_of("dtype", self.dtype, ("auto", "float32", "float16", "bfloat16")),
                checks.one_of("weight_bits", self.weight_bits, (None, 4, 8)),
                checks.one_of("model_format", self.model_format, MODEL_FORMATS),
                checks.one_of("device", self.device, ("auto", "cpu", "cuda")),
                *_common_engine_problems(self),
                None if self.cache_chunk_size == -1 else checks.whole("cache_chunk_size", self.cache_chunk_size, 1),
                checks.whole("cache_block_seq_len", self.cache_block_seq_len, 1),
                checks.finite("rope_scaling_factor", self.rope_scaling_factor, low=0),
                checks.flag("use_logn_attn", self.use_logn_attn),
                checks.whole("num_tokens_per_iter", self.num_tokens_per_iter, 0),
                checks.whole("max_prefill_iters", self.max_prefill_iters, 1),
            ]
        )


@dataclass
class PytorchEngineConfig:
    """How the PyTorch engine runs a model. Fields shared with ``TurbomindEngineConfig`` mean the same.

    Parameters
    ----------
    dtype
        ``auto``, ``float16`` or ``bfloat16``.
    prefill_interval
        Steps between two prefills.
    block_size
        Tokens in a block of the KV cache.
    num_cpu_blocks, num_gpu_blocks
        Blocks of the KV cache; 0: as many as fit.
    adapters
        LoRA adapters: name to path.
    max_prefill_token_num
        Most prompt tokens in a step.
    thread_safe
        Several threads may use the engine.
    device_type
        Kind of device.
    eager_mode
        Do not capture graphs.
    custom_module_map
        Modules that replace the model's own: name to path.

    Raises
    ------
    ValueError
        If a value is of the wrong type or out of range.
    """

    dtype: str = "auto"
    tp: int = 1
    session_len: int | None = None
    max_batch_size: int | None = None
    cache_max_entry_count: float = 0.8
    prefill_interval: int = 16
    block_size: int = 64
    num_cpu_blocks: int = 0
    num_gpu_blocks: int = 0
    adapters: dict[str, str] | None = None
    max_prefill_token_num: int = 4096
    thread_safe: bool = False
    enable_prefix_caching: bool = False
    device_type: str = "cuda"
    eager_mode: bool = False
    custom_module_map: dict[str, str] | None = None
    download_dir: str | None = None
    revision: str | None = None
    quant_policy: Literal[0, 4, 8] = 0

    def __post_init__(self) -> None:
        checks.require(
            [
                checks.one_of("dtype", self.dtype, ("auto", "float16", "bfloat16")),
                *_common_engine_problems(self),
                checks.whole("prefill_interval", self.prefill_interval, 1),
                checks.whole("block_size", self.block_size, 1),
                checks.whole("num_cpu_blocks", self.num_cpu_blocks, 0),
                checks.whole("num_gpu_blocks", self.num_gpu_blocks, 0),
                checks.flag("thread_safe", self.thread_safe),
                checks.flag("eager_mode", self.eager_mode),
            ]
        )


def _common_engine_problems(config: TurbomindEngineConfig | PytorchEngineConfig) -> list[str | None]:
    optional_sizes = ("session_len", "max_batch_size")
    given = [(name, getattr(config, name)) for name in optional_sizes if getattr(config, name) is not None]
    return [
        checks.whole("tp", config.tp, 1),
        *(checks.whole(name, value, 1, MAX_INT32) for name, value in given),
        checks.finite("cache_max_entry_count", config.cache_max_entry_count, above=0),
        checks.flag("enable_prefix_caching", config.enable_prefix_caching),
        checks.one_of("quant_policy", config.quant_policy, QUANT_POLICIES),
        checks.whole("max_prefill_token_num", config.max_prefill_token_num, 1),
        checks.optional_text("download_dir", config.download_dir),
        checks.optional_text("revision", config.revision),
    ]


@dataclass
class Response:
    """An answer, or the newest piece of one when streaming.

    Parameters
    ----------
    text
        The text; when streaming, what is new since the last response.
    generate_token_len, input_token_len
        Tokens generated so far, and in the prompt.
    finish_reason
        None while the answer goes on; then why it ended: ``stop``, ``length`` or ``cancelled``.
    token_ids
        The tokens of ``text``.
    logprobs
        For each token, the asked-for log probabilities by token id.
    logits, last_hidden_state
        ``[tokens, vocab]`` and ``[tokens, hidden]``, if asked for.
    index
        Which prompt of a batch this answers.
    choice
        Which of the ``n`` answers to that prompt this is.
    history_token_len
        Tokens the session held before this prompt.
    session_id
        The session it is of; a prompt without one gets an id of its own.
    """

    text: str
    generate_token_len: int
    input_token_len: int
    finish_reason: Literal["stop", "length", "cancelled", "error"] | None = None
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, float]] | None = None
    logits: "torch.Tensor | None" = None
    last_hidden_state: "torch.Tensor | None" = None
    index: int = 0
    choice: int = 0
    history_token_len: int = 0
    session_id: int | None = None
