"""The data every layer speaks: generation and engine configs, and the response.

Fields and defaults are those of LMDeploy's documented API. Each is declared once, here: checks, documentation,
options of the command line, tensors and the engine's structs are made from these fields (`lmdeploy.fields`); after a
change run ``make fields``.
"""

import dataclasses
import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal

from lmdeploy.fields import field
from lmdeploy.fields.older import accept_older_fields
from lmdeploy.kv_events.config import kv_events_problems
from lmdeploy.speculative.config import speculation_problems

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

LogitsProcessor = Callable[["torch.Tensor", "torch.Tensor"], "torch.Tensor"]
EXTRA_OUTPUTS = (None, "all", "generation")
QUANT_POLICIES = (0, 4, 8)
NUM_CPU_BLOCKS = (
    "More blocks of the KV cache, in the host's memory: blocks evicted from the device go there, and are copied back "
    "instead of computed again; 0: none."
)
CACHE_DIR = (
    "A directory for cached blocks, of this user alone: what prompts and responses leave in the cache is kept in files "
    "there, found again after a restart and by other servers on the directory. Needs enable_prefix_caching."
)
CACHE_DIR_BYTES = "Most bytes in cache_dir; what has not been used for longest is removed."
KV_EVENTS_CONFIG = (
    "Publish to routers, over ZMQ and as vLLM does, which blocks are in the cache: a JSON object with "
    '"enable_kv_cache_events": true and what docs/deployment/operations.md lists. Needs enable_prefix_caching.'
)
SPECULATIVE_CONFIG = (
    "Speculative decoding: draft tokens and verify several in a step; same output, sooner: a JSON object with what "
    'docs/guides/speculative-decoding.md lists, such as {"method": "ngram"}'
)
MODEL_FORMATS = (
    None,
    "hf",
    "meta_llama",
    "awq",
    "gptq",
    "fp8",
    "fbgemm_fp8",
    "compressed-tensors",
    "modelopt",
    "quark",
    "smooth_quant",
    "gguf",
)
DTYPES = ("auto", "float32", "float16", "bfloat16")
DEVICES = ("auto", "cpu", "cuda")
MAX_RESPONSES = 128
MAX_TOP_LOGPROBS = 20
ALL_THAT_IS_LEFT = -1  # as max_new_tokens: what the prompt leaves of the session length

# How far a field reaches: to the engine, also as a tensor; into bodies of the HTTP API; and it makes a request sample.
_ENGINE: dict[str, Any] = {"is_tensor": True, "is_param": True}
_IN_BODIES = {**_ENGINE, "is_in_bodies": True}
_SAMPLING = {**_IN_BODIES, "makes_sampling": True}


@field.documented
@dataclass
class GenerationConfig(field.RecordsGiven):
    """How to generate a response."""

    n: int = field.integer(
        1, "Responses to one prompt, distinguished by their index.", low=1, high=MAX_RESPONSES, **_ENGINE
    )
    max_new_tokens: int | None = field.integer(
        512,
        "Most tokens to generate; None, on the wire -1: up to the session length, which also bounds larger numbers.",
        low=1,
        wire_low=ALL_THAT_IS_LEFT,
        is_optional=True,
        none_means=ALL_THAT_IS_LEFT,
        also=("max_tokens",),
        **_ENGINE,
    )
    do_sample: bool = field.boolean(
        False,
        "False: greedy decoding, whatever the sampling fields say.",
        **_ENGINE,
        tensor_default="true if a sampling field is given, else false",
    )
    top_p: float = field.number(
        1.0,
        "Keep the most likely tokens that together have this probability; 0: the most likely token alone.",
        low=0,
        high=1,
        **_SAMPLING,
    )
    top_k: int = field.integer(
        50,
        "Keep this many of the most likely tokens; 0: all.",
        **_SAMPLING,
    )
    min_p: float = field.number(
        0.0,
        "Keep the tokens with at least this share of the most likely one's probability.",
        low=0,
        high=1,
        **_SAMPLING,
    )
    top_n_sigma: float = field.number(
        0.0,
        "Keep the tokens whose logit is within this many standard deviations (of the logits) of the largest; 0: all.",
        low=0,
        high=100,
        **_SAMPLING,
    )
    temperature: float = field.number(
        0.8,
        "Divides the logits; 0 is greedy.",
        low=0,
        high=2,
        **_SAMPLING,
    )
    repetition_penalty: float = field.number(
        1.0,
        "A value over 1 discourages tokens that are already in the prompt or the response.",
        above=0,
        high=100,
        **_IN_BODIES,
    )
    ignore_eos: bool = field.boolean(
        False,
        "The model's own end-of-sequence tokens do not end the response.",
        **_IN_BODIES,
    )
    random_seed: int | None = field.seed(
        "Seed of this request's random numbers; default: a random seed.",
        also=("seed",),
        **_ENGINE,
    )
    stop_words: list[str] | None = field.strings(
        "Strings of any length that end the response; they are not part of it.",
        max_items=64,
        max_bytes=16384,
        also=("stop",),
        **_ENGINE,
    )
    bad_words: list[str] | None = field.strings(
        "Strings that are never generated.",
        max_items=64,
        max_bytes=256,
        **_IN_BODIES,
    )
    stop_token_ids: list[int] | None = field.tokens(
        "Tokens that end the response, alongside the model's own; they are not part of it.",
        max_items=1024,
        **_IN_BODIES,
    )
    bad_token_ids: list[int] | None = field.tokens("Tokens that are never generated.", max_items=10000, **_ENGINE)
    min_new_tokens: int | None = field.integer(
        None,
        "Least tokens to generate: before, nothing ends the response.",
        none_means=0,
        also=("min_tokens",),
        **_IN_BODIES,
    )
    skip_special_tokens: bool = field.boolean(True, "Special tokens do not appear in the text.", **_IN_BODIES)
    spaces_between_special_tokens: bool = field.boolean(
        True,
        "Put spaces between special tokens.",
        no_effect="the tokenizers used here never put spaces between special tokens",
    )
    logprobs: int | None = field.integer(
        None,
        "Return the log probability of each token, and of this many most likely ones alongside it.",
        high=MAX_TOP_LOGPROBS,
        **_ENGINE,
    )
    response_format: dict[str, Any] | None = field.json_object(
        'What the response has to match: {"type": "text" | "json_object" | "json_schema" | "regex_schema" | '
        '"grammar" | "lark" | "structural_tag"} with a member named as the type: json_schema {"schema": ...}, '
        'regex_schema "...", grammar "..." (EBNF), lark "...", structural_tag {...} (a format of xgrammar\'s, such as '
        "triggered_tags).",
        **_ENGINE,
    )
    logits_processors: list[LogitsProcessor] | None = field.other(
        "Functions (input_ids [tokens], logits [vocab]) -> logits [vocab], applied in turn before sampling."
    )
    output_logits: Literal["all", "generation"] | None = field.string(
        None, "Return the logits of the generated tokens, or of the prompt's as well.", choices=EXTRA_OUTPUTS
    )
    output_last_hidden_state: Literal["all", "generation"] | None = field.string(
        None, "Return the hidden states before the output layer of the same tokens.", choices=EXTRA_OUTPUTS
    )
    presence_penalty: float = field.number(
        0.0,
        "Subtracted once from the logit of each token of the response so far.",
        low=-2,
        high=2,
        **_ENGINE,
    )
    frequency_penalty: float = field.number(
        0.0,
        "Subtracted from the logit of a token for each time it is in the response so far.",
        low=-2,
        high=2,
        **_ENGINE,
    )
    logit_bias: dict[int, float] | None = field.biases(
        "Token ids, and what is added to the logit of each.", max_items=1024, **_ENGINE
    )

    def __post_init__(self) -> None:
        field.require_valid(self, [self._min_new_tokens_problem()])

    def _min_new_tokens_problem(self) -> str | None:
        least, most = self.min_new_tokens, self.max_new_tokens
        if isinstance(least, int) and isinstance(most, int) and least > most:
            return f"min_new_tokens must be <= max_new_tokens {most}, got {least}"
        return None


@field.documented
@dataclass
class TurbomindEngineConfig:
    """How the C++ engine runs a model."""

    dtype: str = field.string(
        "auto", "Type of the weights and activations in memory; auto: the checkpoint's.", choices=DTYPES
    )
    weight_bits: int | None = field.integer(
        None,
        "Quantize the weights to this many bits while loading: faster, slightly less accurate. Weights that the "
        "checkpoint has in 8 or 4 bits stay as they are.",
        choices=(None, 4, 8),
        none_means=0,
    )
    model_format: str | None = field.string(
        None,
        "Layout of the checkpoint; default: detected; a given one must agree.",
        choices=MODEL_FORMATS,
        none_means="",
    )
    tp: int = field.integer(
        1,
        "Tensor parallelism: the number of GPUs, or of parts of the CPU's cores, that share a model. Must divide the "
        "number of the model's heads.",
        low=1,
    )
    session_len: int | None = field.integer(
        None,
        "Context length, prompt and response together; default: what the model was trained for, as far as it fits "
        "the cache.",
        low=2,
        none_means=0,
    )
    max_batch_size: int | None = field.integer(
        None, "Most sequences in a step; default: 64 on a CPU, 256 on a GPU.", low=1, none_means=0
    )
    cache_max_entry_count: float = field.number(
        0.8,
        "Share of the free memory for the KV cache; from 1 on, the number of its blocks. On a CPU the default also "
        "means at most 4 GiB.",
        above=0,
        high=1e9,
    )
    cache_chunk_size: int = field.integer(
        -1,
        "Blocks the cache grows by; -1: all at once.",
        low=-1,
        no_effect="the cache is sized at start, and on a CPU its blocks take no memory before their first use",
    )
    cache_block_seq_len: int = field.integer(
        64, "Tokens in a block of the KV cache.", choices=(16, 32, 64, 128, 256, 512)
    )
    num_cpu_blocks: int = field.integer(0, NUM_CPU_BLOCKS)
    cache_dir: str | None = field.string(None, CACHE_DIR, none_means="")
    cache_dir_bytes: float = field.number(10e9, CACHE_DIR_BYTES, low=0, high=1e15)
    state_snapshot_interval: int = field.integer(
        512,
        "Tokens of a prompt between snapshots of the state of recurrent layers, from which other prompts continue; 0: "
        "at the ends of prompts and responses, and where prompts part, alone.",
        high=1_000_000,
    )
    enable_prefix_caching: bool = field.boolean(True, "Reuse the cached blocks of equal prompt prefixes.")
    kv_events_config: dict[str, Any] | None = field.json_object(KV_EVENTS_CONFIG)
    speculative_config: dict[str, Any] | str | None = field.json_object(
        SPECULATIVE_CONFIG + "; auto: that on CPUs, where it pays; none: off.", words=("auto", "none")
    )
    quant_policy: int = field.integer(0, "Bits of the KV cache; 0: not quantized.", choices=QUANT_POLICIES)
    rope_scaling_factor: float = field.number(
        0.0, "Factor of dynamic NTK scaling beyond the trained length; 0: as the model says.", low=0
    )
    use_logn_attn: bool = field.boolean(False, "Scale attention by the logarithm of the position.")
    download_dir: str | None = field.string(None, "Where a model that has to be downloaded is stored.")
    revision: str | None = field.string(None, "Which version of it: a branch, tag or commit.")
    max_prefill_token_num: int = field.integer(
        8192,
        "Most prompt tokens in a step. On a CPU the default means 256, which keeps running responses going.",
        low=1,
    )
    num_tokens_per_iter: int = field.integer(
        0, "Token budget of a step, for prefill and decode together; 0: max_prefill_token_num."
    )
    max_prefill_iters: int = field.integer(
        1, "Over 1: a step is made so large that no prompt takes more of them; 1: no such bound.", low=1
    )
    device: str = field.string(
        "auto", "What to run on; auto: a GPU where the build and the machine have one, else the CPU.", choices=DEVICES
    )
    threads: int = field.integer(0, "CPU threads that compute; 0: one for each core this process may use.", high=1024)
    max_waiting: int = field.integer(4096, "Requests that may wait; one more is refused as overloaded.", low=1)
    max_embedding_mib: int = field.integer(
        1024,
        "Most MiB of image embeddings, of open requests and sessions together; a request beyond is refused as "
        "overloaded.",
        low=1,
    )
    adapters: dict[str, str] | None = field.names("LoRA adapters: name to path. More can be loaded later.")
    max_adapter_mib: int = field.integer(
        1024,
        "Most MiB of LoRA adapters in memory. Unused ones are evicted when another is needed.",
        low=1,
    )
    grammar_compile_seconds: float = field.number(
        10.0,
        "Most processor seconds to compile a response format; one that takes longer is refused.",
        above=0,
        high=3600,
    )
    session_idle_seconds: int = field.integer(3600, "A session that is not used for so long is forgotten.", low=1)
    step_timeout: int = field.integer(
        300,
        "Most seconds of a step. After them the engine counts as hanging: it is not ready, and the server restarts.",
        low=1,
    )

    def __post_init__(self) -> None:
        if self.speculative_config is None:
            self.speculative_config = "none"
        field.require_valid(
            self,
            kv_events_problems(self.kv_events_config, self.enable_prefix_caching)
            + speculation_problems(self.speculative_config),
        )


@field.documented
@dataclass
class PytorchEngineConfig:
    """How the PyTorch engine runs a model. Fields shared with ``TurbomindEngineConfig`` mean the same."""

    dtype: str = field.string("auto", "Type of the weights in memory; auto: the checkpoint's.", choices=DTYPES)
    tp: int = field.integer(1, "Devices one model is spread over, a process each.", low=1)
    session_len: int | None = field.integer(None, "Most tokens of a conversation, prompt and response.", low=2)
    max_batch_size: int | None = field.integer(None, "Most sequences in a step.", low=1)
    cache_max_entry_count: float = field.number(
        0.8, "Share of the free memory for the KV cache; from 1 on, the number of its blocks.", above=0, high=1e9
    )
    prefill_interval: int = field.integer(
        16,
        "Steps between two prefills.",
        low=1,
        no_effect="a step contains prefill and decode together, so neither waits for the other",
    )
    block_size: int = field.integer(64, "Tokens in a block of the KV cache.", choices=(16, 32, 64, 128, 256, 512))
    num_cpu_blocks: int = field.integer(0, NUM_CPU_BLOCKS)
    num_gpu_blocks: int = field.integer(0, "Blocks of the KV cache; 0: as many as cache_max_entry_count says.")
    adapters: dict[str, str] | None = field.names("LoRA adapters: name to path.")
    max_prefill_token_num: int = field.integer(
        8192,
        "Most prompt tokens in a step. On a CPU the default means 256, which keeps running responses going.",
        low=1,
    )
    thread_safe: bool = field.boolean(
        False, "Several threads may use the engine.", no_effect="several threads always may use an engine"
    )
    enable_prefix_caching: bool = field.boolean(True, "Reuse the cached blocks of equal prompt prefixes.")
    kv_events_config: dict[str, Any] | None = field.json_object(KV_EVENTS_CONFIG)
    speculative_config: dict[str, Any] | str | None = field.json_object(
        SPECULATIVE_CONFIG + "; none: off.", words=("none",)
    )
    device_type: str = field.string("auto", "What to run on; auto: a GPU where PyTorch finds one, else the CPU.")
    eager_mode: bool = field.boolean(False, "Do not capture graphs.")
    custom_module_map: dict[str, str] | str | None = field.other(
        "Model classes to use instead of the built-in ones: a Python file, or a dict of architecture to class."
    )
    download_dir: str | None = field.string(None, "Where a model that has to be downloaded is stored.")
    revision: str | None = field.string(None, "Which version of it: a branch, tag or commit.")
    quant_policy: Literal[0, 4, 8] = field.integer(0, "Bits of the KV cache; 0: not quantized.", choices=QUANT_POLICIES)
    threads: int = field.integer(0, "CPU threads that compute; 0: one for each core this process may use.", high=1024)
    worker_step_seconds: float = field.number(
        600.0, "A step that takes longer counts as lost, and the processes are started again.", above=0
    )

    def __post_init__(self) -> None:
        if self.speculative_config is None:
            self.speculative_config = "none"
        field.require_valid(
            self,
            kv_events_problems(self.kv_events_config, self.enable_prefix_caching)
            + speculation_problems(self.speculative_config),
        )


_NAMED = "a model has the name given to pipeline or --model-name, and its chat template the one of chat_template_config"
accept_older_fields(
    TurbomindEngineConfig,
    {
        "model_name": _NAMED,
        "group_size": "the size of groups is read from the checkpoint",
        "max_context_token_num": "max_prefill_token_num bounds the prompt tokens of a step",
        "use_context_fmha": "prompts always run in the fused attention kernel",
        "use_dynamic_ntk": "rope_scaling_factor alone turns dynamic NTK on",
        "kv_bits": "quant_policy says how many bits the cache has",
    },
)
accept_older_fields(
    PytorchEngineConfig,
    {
        "model_name": _NAMED,
        "eviction_type": "what is evicted is computed again, or copied back from num_cpu_blocks blocks of the host",
    },
)


@dataclass
class VisionConfig:
    """How a vision-language model processes images.

    Parameters
    ----------
    max_batch_size
        Has no effect, which a warning reports for more than 1: images are looked at one by one, so that a response
        never depends on other requests'.
    thread_safe
        Kept for compatibility: several threads always may.
    """

    max_batch_size: int = 1
    thread_safe: bool = False

    def __post_init__(self) -> None:
        if type(self.max_batch_size) is not int or self.max_batch_size < 1:
            raise ValueError(f"max_batch_size must be a whole number >= 1, got {self.max_batch_size!r}")
        if self.max_batch_size > 1:
            logger.warning(
                "VisionConfig.max_batch_size has no effect: images are looked at one by one, so that no response "
                "depends on another's"
            )


def require_vision_config(given: object) -> None:
    """Raise ``ValueError`` for what is neither a ``VisionConfig`` nor None."""
    if not isinstance(given, VisionConfig | None):
        raise ValueError(f"vision_config must be a VisionConfig, got {type(given).__name__}")


@dataclass
class Response:
    """A response, or the newest piece of one when streaming.

    Parameters
    ----------
    text
        The text; when streaming, what is new since the last response.
    generate_token_len, input_token_len
        Tokens generated so far, and in the prompt.
    finish_reason
        None while the response continues; then why it ended: ``stop``, ``length`` or ``cancelled``.
    token_ids
        The tokens of ``text``.
    logprobs
        For each token, the asked-for log probabilities by token id.
    logits, last_hidden_state
        ``[tokens, vocab]`` and ``[tokens, hidden]``, if asked for.
    index
        Which prompt of a batch this answers.
    choice
        Which of the ``n`` responses to that prompt this is.
    history_token_len
        Tokens the session held before this prompt.
    session_id
        The session it is of; a prompt without one gets its own id.
    """

    text: str
    generate_token_len: int
    input_token_len: int
    finish_reason: Literal["stop", "length", "cancelled", "error"] | None = None
    token_ids: list[int] = dataclasses.field(default_factory=list)
    logprobs: list[dict[int, float]] | None = None
    logits: "torch.Tensor | None" = None
    last_hidden_state: "torch.Tensor | None" = None
    index: int = 0
    choice: int = 0
    history_token_len: int = 0
    session_id: int | None = None


class ResponseType(Enum):
    """How an output of ``lmdeploy.turbomind.TurboMind`` came about."""

    SUCCESS = 1
    FINISH = 2
    ENGINE_STOP_ERROR = 3
    SESSION_REPEAT = 4
    SESSION_NOT_EXIST = 5
    HANDLER_NOT_EXIST = 6
    INPUT_LENGTH_ERROR = 7
    INTERNAL_ENGINE_ERROR = 8


@dataclass
class EngineOutput:
    """What ``lmdeploy.turbomind.TurboMind`` has generated so far.

    Parameters
    ----------
    status
        ``SUCCESS`` while the response continues, then ``FINISH``, or why there is none.
    token_ids
        All tokens of the response until now.
    num_token
        How many they are.
    logprobs
        For each token, the asked-for log probabilities by token id.
    logits, last_hidden_state
        ``[tokens, vocab]`` and ``[tokens, hidden]`` of what is new, if asked for.
    """

    status: ResponseType
    token_ids: list[int]
    num_token: int
    logprobs: list[dict[int, float]] | None = None
    logits: "torch.Tensor | None" = None
    last_hidden_state: "torch.Tensor | None" = None
