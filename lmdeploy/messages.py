"""Public configuration and response types: generation and engine configs, and the response.

Fields and defaults are those of LMDeploy's documented API. Each is declared once, here: validation, documentation,
command-line options, tensors and the engine's structs are derived from these fields (`lmdeploy.fields`). After a
change run ``make fields``.
"""

import dataclasses
import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Literal

from lmdeploy.fields import field
from lmdeploy.fields.older import accept_older_fields
from lmdeploy.kv_events.config import kv_events_problems
from lmdeploy.speculative import speculation_problems

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

LogitsProcessor = Callable[["torch.Tensor", "torch.Tensor"], "torch.Tensor"]
EXTRA_OUTPUTS = (None, "all", "generation")
QUANT_POLICIES = (0, 4, 8)
NUM_CPU_BLOCKS = (
    "Number of additional KV cache blocks in host memory: blocks evicted from the device are swapped there, and copied "
    "back instead of recomputed; 0: none."
)
CACHE_DIR = (
    "Directory for KV cache blocks, owned by this user: blocks of prompts and responses are stored there, and reused "
    "after a restart and by other servers with the same directory. Requires enable_prefix_caching."
)
CACHE_DIR_BYTES = "Maximum size of cache_dir; the least recently used blocks are removed."
KV_EVENTS_CONFIG = (
    "Publish KV cache events over ZMQ, in vLLM's format, for prefix-aware routers: a JSON object with "
    '"enable_kv_cache_events": true and the options in docs/deployment/operations.md. Requires enable_prefix_caching.'
)
SPECULATIVE_CONFIG = (
    "Speculative decoding, which drafts tokens and verifies several per step with the same output: a JSON object with "
    'the options in docs/guides/speculative-decoding.md, such as {"method": "ngram"}'
)
_FORMATS = "hf meta_llama awq gptq fp8 fbgemm_fp8 compressed-tensors modelopt quark smooth_quant gguf"
MODEL_FORMATS = (None, *_FORMATS.split())
DTYPES = ("auto", "float32", "float16", "bfloat16")
DEVICES = ("auto", "cpu", "cuda")
MAX_RESPONSES = 128
MAX_TOP_LOGPROBS = 20
ALL_THAT_IS_LEFT = -1  # as max_new_tokens: up to the session length
REPETITION: Final = "repetition"  # as the engine ends a response that repeats itself; for clients this is ``length``

# How far a field reaches: to the engine, also as a tensor; into bodies of the HTTP API; and it makes a request sample.
_ENGINE: dict[str, Any] = {"is_tensor": True, "is_param": True}
_IN_BODIES = {**_ENGINE, "is_in_bodies": True}
_SAMPLING = {**_IN_BODIES, "makes_sampling": True}
_SAMPLING_PARAMETER = {**_SAMPLING, "is_tensor": False}  # of a Triton request: a parameter instead


@field.documented
@dataclass
class GenerationConfig(field.RecordsGiven):
    """Generation parameters of a request."""

    n: int = field.integer(1, "Number of responses per prompt.", low=1, high=MAX_RESPONSES, **_ENGINE)
    max_new_tokens: int | None = field.integer(
        512,
        "Maximum number of tokens to generate; None, as a tensor -1: up to the session length, which also "
        "bounds larger values.",
        low=1,
        wire_low=ALL_THAT_IS_LEFT,
        is_optional=True,
        none_means=ALL_THAT_IS_LEFT,
        also=("max_tokens",),
        **_ENGINE,
    )
    do_sample: bool = field.boolean(
        False,
        "False: greedy decoding; the sampling fields are ignored.",
        **_ENGINE,
        tensor_default="true if a sampling field is given, else false",
    )
    top_p: float = field.number(
        1.0,
        "Nucleus sampling: sample from the most likely tokens whose cumulative probability reaches this value; "
        "0: only the most likely token.",
        low=0,
        high=1,
        off=1,
        **_SAMPLING,
    )
    top_k: int = field.integer(
        50,
        "Sample from this many most likely tokens; 0: all.",
        off=0,
        **_SAMPLING,
    )
    min_p: float = field.number(
        0.0,
        "Minimum probability of a token, relative to the most likely token.",
        low=0,
        high=1,
        off=0,
        **_SAMPLING,
    )
    typical_p: float = field.number(
        1.0,
        "Locally typical sampling: sample from the tokens whose information is nearest to the expected one and whose "
        "cumulative probability reaches this value; 1: all.",
        above=0,
        high=1,
        off=1,
        **_SAMPLING_PARAMETER,
    )
    top_n_sigma: float = field.number(
        0.0,
        "Sample from tokens whose logit is within this many standard deviations of the maximum; 0: all.",
        low=0,
        high=100,
        off=0,
        **_SAMPLING,
    )
    temperature: float = field.number(
        0.8,
        "Sampling temperature, which divides the logits; 0: greedy.",
        low=0,
        high=2,
        off=1,
        **_SAMPLING,
    )
    repetition_penalty: float = field.number(
        1.0,
        "Values over 1 penalize tokens that are already in the prompt or the response.",
        above=0,
        high=100,
        off=1,
        **_IN_BODIES,
    )
    ignore_eos: bool = field.boolean(
        False,
        "Do not stop at the model's end-of-sequence tokens.",
        **_IN_BODIES,
    )
    random_seed: int | None = field.seed(
        "Random seed of the request; default: a random one.",
        also=("seed",),
        **_ENGINE,
    )
    stop_words: list[str] | None = field.strings(
        "Strings that end the response, which does not include them.",
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
        "Tokens that end the response, in addition to the model's; the response does not include them.",
        max_items=1024,
        **_IN_BODIES,
    )
    bad_token_ids: list[int] | None = field.tokens("Tokens that are never generated.", max_items=10000, **_ENGINE)
    min_new_tokens: int | None = field.integer(
        None,
        "Minimum number of tokens to generate: before, no stop condition applies.",
        none_means=0,
        also=("min_tokens",),
        **_IN_BODIES,
    )
    skip_special_tokens: bool = field.boolean(True, "Omit special tokens from the text.", **_IN_BODIES)
    spaces_between_special_tokens: bool = field.boolean(
        True,
        "Add spaces between special tokens.",
        no_effect="the tokenizers never add spaces between special tokens",
    )
    logprobs: int | None = field.integer(
        None,
        "Return the log probability of each token and of this many most likely alternatives.",
        high=MAX_TOP_LOGPROBS,
        **_ENGINE,
    )
    response_format: dict[str, Any] | None = field.json_object(
        'Format that the response must match: {"type": "text" | "json_object" | "json_schema" | "regex_schema" | '
        '"grammar" | "lark" | "structural_tag"} and a member named like the type: json_schema {"schema": ...}, '
        'regex_schema "...", grammar "..." (EBNF), lark "...", structural_tag {...} (a format of xgrammar\'s, such as '
        "triggered_tags).",
        **_ENGINE,
    )
    logits_processors: list[LogitsProcessor] | None = field.other(
        "Functions (input_ids [tokens], logits [vocab]) -> logits [vocab], applied in order before sampling."
    )
    output_logits: Literal["all", "generation"] | None = field.string(
        None, "Return the logits of the generated tokens, or of all tokens.", choices=EXTRA_OUTPUTS
    )
    output_last_hidden_state: Literal["all", "generation"] | None = field.string(
        None, "Return the last hidden states of the generated tokens, or of all tokens.", choices=EXTRA_OUTPUTS
    )
    presence_penalty: float = field.number(
        0.0,
        "Subtracted from the logits of tokens that are in the response so far.",
        low=-2,
        high=2,
        off=0,
        **_ENGINE,
    )
    frequency_penalty: float = field.number(
        0.0,
        "Subtracted from the logit of a token once per occurrence in the response so far.",
        low=-2,
        high=2,
        off=0,
        **_ENGINE,
    )
    repetition_detection: Literal["off", "reasoning", "all"] = field.string(
        "reasoning",
        "End what only repeats one span: at most 64 tokens, at least 4 times and for at least 256 tokens. reasoning: "
        "reasoning, after which the answer begins; all: also the response, with finish_reason length; off: nothing.",
        choices=("off", "reasoning", "all"),
        **_IN_BODIES,
    )
    logit_bias: dict[int, float] | None = field.biases(
        "Values added to the logits of tokens, by token id.", max_items=1024, **_ENGINE
    )

    def __post_init__(self) -> None:
        field.require_valid(self, [self._min_new_tokens_problem()])

    def _min_new_tokens_problem(self) -> str | None:
        minimum, maximum = self.min_new_tokens, self.max_new_tokens
        if isinstance(minimum, int) and isinstance(maximum, int) and minimum > maximum:
            return f"min_new_tokens must be <= max_new_tokens {maximum}, got {minimum}"
        return None


@field.documented
@dataclass
class TurbomindEngineConfig:
    """Configuration of the C++ engine, TurboMind."""

    dtype: str = field.string("auto", "Type of weights and activations; auto: the checkpoint's.", choices=DTYPES)
    weight_bits: int | None = field.integer(
        None,
        "Quantize the weights to this many bits while loading: faster, slightly less accurate. Weights that "
        "are quantized in the checkpoint are not changed.",
        choices=(None, 4, 8),
        none_means=0,
    )
    model_format: str | None = field.string(
        None,
        "Checkpoint format; default: detected. A given format must match the checkpoint.",
        choices=MODEL_FORMATS,
        none_means="",
    )
    tp: int = field.integer(
        1,
        "Tensor parallelism: number of GPUs, or of groups of CPU cores, that share the model. Must divide the "
        "number of attention heads.",
        low=1,
    )
    session_len: int | None = field.integer(
        None,
        "Maximum context length, prompt and response together; default: the model's, limited by the size of the cache.",
        low=2,
        none_means=0,
    )
    max_batch_size: int | None = field.integer(
        None, "Maximum number of sequences per step; default: 64 on a CPU, 256 on a GPU.", low=1, none_means=0
    )
    cache_max_entry_count: float = field.number(
        0.8,
        "Share of free memory for the KV cache; values of 1 or more are a number of blocks. On a CPU the default is "
        "limited to 4 GiB.",
        above=0,
        high=1e9,
    )
    cache_chunk_size: int = field.integer(
        -1,
        "Number of blocks that the cache grows by; -1: all at once.",
        low=-1,
        no_effect="the cache is sized at start, and on a CPU its pages are allocated at first use",
    )
    cache_block_seq_len: int = field.integer(
        64, "Tokens per block of the KV cache.", choices=(16, 32, 64, 128, 256, 512)
    )
    num_cpu_blocks: int = field.integer(0, NUM_CPU_BLOCKS)
    cache_dir: str | None = field.string(None, CACHE_DIR, none_means="")
    cache_dir_bytes: float = field.number(10e9, CACHE_DIR_BYTES, low=0, high=1e15)
    state_snapshot_interval: int = field.integer(
        512,
        "Prompt tokens between snapshots of the states of recurrent layers, which prefix caching resumes from; 0: "
        "snapshots only at the ends of prompts and responses and where prompts diverge.",
        high=1_000_000,
    )
    enable_prefix_caching: bool = field.boolean(
        True, "Automatic prefix caching: reuse the KV cache of common prompt prefixes."
    )
    kv_events_config: dict[str, Any] | None = field.json_object(KV_EVENTS_CONFIG)
    speculative_config: dict[str, Any] | str | None = field.json_object(
        SPECULATIVE_CONFIG + "; auto: that on CPUs, where it is faster; none: disabled.", words=("auto", "none")
    )
    quant_policy: int = field.integer(0, "Bits per element of the KV cache; 0: not quantized.", choices=QUANT_POLICIES)
    rope_scaling_factor: float = field.number(
        0.0, "Factor of dynamic NTK scaling beyond the trained length; 0: the model's.", low=0
    )
    use_logn_attn: bool = field.boolean(False, "Scale attention logits by the logarithm of the position.")
    download_dir: str | None = field.string(None, "Download directory for models of a hub.")
    revision: str | None = field.string(None, "Revision of a model of a hub: branch, tag or commit.")
    max_prefill_token_num: int = field.integer(
        8192,
        "Maximum number of prompt tokens per step (chunked prefill). On a CPU the default is limited to 256, so that "
        "running responses are not delayed.",
        low=1,
    )
    num_tokens_per_iter: int = field.integer(
        0, "Token budget per step, for prefill and decode together; 0: max_prefill_token_num."
    )
    max_prefill_iters: int = field.integer(
        1, "Maximum number of steps for a prompt, which raises the token budget of long prompts; 1: unlimited.", low=1
    )
    device: str = field.string(
        "auto", "Device; auto: a GPU if the build supports it and one is present, else the CPU.", choices=DEVICES
    )
    threads: int = field.integer(
        0, "Number of compute threads on the CPU; 0: one per core available to the process.", high=1024
    )
    max_waiting: int = field.integer(
        4096, "Maximum number of waiting requests; further ones are rejected as overloaded.", low=1
    )
    max_embedding_mib: int = field.integer(
        1024,
        "Maximum MiB of image embeddings of all open requests and sessions; a request over the limit is rejected as "
        "overloaded.",
        low=1,
    )
    adapters: dict[str, str] | None = field.names("LoRA adapters, path by name. More can be loaded at run time.")
    max_adapter_mib: int = field.integer(
        1024,
        "Maximum MiB of LoRA adapters in memory. The least recently used ones are evicted.",
        low=1,
    )
    grammar_compile_seconds: float = field.number(
        10.0,
        "Maximum CPU seconds to compile a response format; a format over the limit is rejected.",
        above=0,
        high=3600,
    )
    session_idle_seconds: int = field.integer(3600, "Idle time after which a session is deleted.", low=1)
    step_timeout: int = field.integer(
        300,
        "Maximum seconds per step. After that the engine is considered hung: it reports not ready, and the "
        "server restarts.",
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
    """Configuration of the PyTorch engine. Fields shared with ``TurbomindEngineConfig`` mean the same."""

    dtype: str = field.string("auto", "Type of weights and activations; auto: the checkpoint's.", choices=DTYPES)
    tp: int = field.integer(1, "Tensor parallelism: number of devices that share the model, one process each.", low=1)
    session_len: int | None = field.integer(None, "Maximum context length, prompt and response together.", low=2)
    max_batch_size: int | None = field.integer(None, "Maximum number of sequences per step.", low=1)
    cache_max_entry_count: float = field.number(
        0.8, "Share of free memory for the KV cache; values of 1 or more are a number of blocks.", above=0, high=1e9
    )
    prefill_interval: int = field.integer(
        16,
        "Steps between prefills.",
        low=1,
        no_effect="a step runs prefill and decode together",
    )
    block_size: int = field.integer(64, "Tokens per block of the KV cache.", choices=(16, 32, 64, 128, 256, 512))
    num_cpu_blocks: int = field.integer(0, NUM_CPU_BLOCKS)
    num_gpu_blocks: int = field.integer(0, "Number of KV cache blocks; 0: given by cache_max_entry_count.")
    adapters: dict[str, str] | None = field.names("LoRA adapters, path by name.")
    max_prefill_token_num: int = field.integer(
        8192,
        "Maximum number of prompt tokens per step (chunked prefill). On a CPU the default is limited to 256, so that "
        "running responses are not delayed.",
        low=1,
    )
    thread_safe: bool = field.boolean(
        False, "Allow several threads to use the engine.", no_effect="engines are always thread-safe"
    )
    enable_prefix_caching: bool = field.boolean(
        True, "Automatic prefix caching: reuse the KV cache of common prompt prefixes."
    )
    kv_events_config: dict[str, Any] | None = field.json_object(KV_EVENTS_CONFIG)
    speculative_config: dict[str, Any] | str | None = field.json_object(
        SPECULATIVE_CONFIG + "; none: disabled.", words=("none",)
    )
    device_type: str = field.string("auto", "Device; auto: a GPU if PyTorch finds one, else the CPU.")
    eager_mode: bool = field.boolean(False, "Disable CUDA graphs.")
    custom_module_map: dict[str, str] | str | None = field.other(
        "Model classes that replace the built-in ones: a Python file, or a dict of class by architecture."
    )
    download_dir: str | None = field.string(None, "Download directory for models of a hub.")
    revision: str | None = field.string(None, "Revision of a model of a hub: branch, tag or commit.")
    quant_policy: Literal[0, 4, 8] = field.integer(
        0, "Bits per element of the KV cache; 0: not quantized.", choices=QUANT_POLICIES
    )
    threads: int = field.integer(
        0, "Number of compute threads on the CPU; 0: one per core available to the process.", high=1024
    )
    worker_step_seconds: float = field.number(
        600.0, "Maximum seconds per step, after which the worker processes are restarted.", above=0
    )

    def __post_init__(self) -> None:
        if self.speculative_config is None:
            self.speculative_config = "none"
        field.require_valid(
            self,
            kv_events_problems(self.kv_events_config, self.enable_prefix_caching)
            + speculation_problems(self.speculative_config),
        )


_NAMED = "set the model name with --model-name or pipeline(model_name=), the chat template with chat_template_config"
accept_older_fields(
    TurbomindEngineConfig,
    {
        "model_name": _NAMED,
        "group_size": "the group size is read from the checkpoint",
        "max_context_token_num": "use max_prefill_token_num",
        "use_context_fmha": "prompts always use fused attention",
        "use_dynamic_ntk": "rope_scaling_factor enables dynamic NTK",
        "kv_bits": "use quant_policy",
    },
)
accept_older_fields(
    PytorchEngineConfig,
    {
        "model_name": _NAMED,
        "eviction_type": "evicted blocks are recomputed, or copied back from host memory (num_cpu_blocks)",
    },
)


@dataclass
class VisionConfig:
    """Image processing of a vision-language model.

    Parameters
    ----------
    max_batch_size
        Has no effect, and values over 1 log a warning: images are encoded one at a time, so that a response
        never depends on other requests.
    thread_safe
        Has no effect: engines are always thread-safe.
    """

    max_batch_size: int = 1
    thread_safe: bool = False

    def __post_init__(self) -> None:
        if type(self.max_batch_size) is not int or self.max_batch_size < 1:
            raise ValueError(f"max_batch_size must be a whole number >= 1, got {self.max_batch_size!r}")
        if self.max_batch_size > 1:
            logger.warning(
                "VisionConfig.max_batch_size has no effect: images are encoded one at a time, so that no response "
                "depends on other requests"
            )


def require_vision_config(given: object) -> None:
    """Raise ``ValueError`` unless the value is a ``VisionConfig`` or None."""
    if not isinstance(given, VisionConfig | None):
        raise ValueError(f"vision_config must be a VisionConfig, got {type(given).__name__}")


@dataclass
class Response:
    """A response, or the latest chunk of one when streaming.

    Parameters
    ----------
    text
        The text; when streaming, the text since the previous chunk.
    generate_token_len, input_token_len
        Number of tokens generated so far, and of prompt tokens.
    finish_reason
        None while the response continues; then ``stop``, ``length`` or ``cancelled``.
    token_ids
        The tokens of ``text``.
    logprobs
        For each token, the requested log probabilities by token id.
    logits, last_hidden_state
        ``[tokens, vocab]`` and ``[tokens, hidden]``, if requested.
    index
        Index of the prompt in the batch.
    choice
        Index among the ``n`` responses to the prompt.
    history_token_len
        Number of tokens of the session before this prompt.
    session_id
        The session id; a prompt without a session gets a new one.
    stop_reason
        ``repetition`` where `GenerationConfig.repetition_detection` ended the response, with ``length``.
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
    stop_reason: Literal["repetition"] | None = None


class ResponseType(Enum):
    """Status of an output of ``lmdeploy.turbomind.TurboMind``."""

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
    """Output of ``lmdeploy.turbomind.TurboMind`` so far.

    Parameters
    ----------
    status
        ``SUCCESS`` while the response continues, then ``FINISH`` or an error.
    token_ids
        All tokens of the response so far.
    num_token
        Number of ``token_ids``.
    logprobs
        For each token, the requested log probabilities by token id.
    logits, last_hidden_state
        ``[tokens, vocab]`` and ``[tokens, hidden]`` of the new tokens, if requested.
    """

    status: ResponseType
    token_ids: list[int]
    num_token: int
    logprobs: list[dict[int, float]] | None = None
    logits: "torch.Tensor | None" = None
    last_hidden_state: "torch.Tensor | None" = None
