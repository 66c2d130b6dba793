"""The engine on CUDA: emulated on the CPU, and on a GPU where the build has one. Kernels alone: tests/kernels.

Models in float32 agree with `transformers` as they do on the CPU. Everything else is held against the engine on the
CPU, which tests/engine holds against `transformers`.
"""

import ctypes
import string
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import lmdeploy.turbomind.engine as engine_module
from lmdeploy import GenerationConfig, TurbomindEngineConfig, pipeline
from tests.engine.test_model_families import PROMPT as LARGE_TOKENS
from tests.engine.test_model_families import VOCAB, check_logits, within
from tests.kernels.device import cuda_devices, load_module
from tests.support.adapters import make_adapter
from tests.support.cogvlm_reference import make_tiny_cogvlm
from tests.support.expert_models import EXPERTS
from tests.support.images import make_image
from tests.support.mllama_reference import make_tiny_mllama
from tests.support.quantized_checkpoints import quantize_checkpoint
from tests.support.scaled_checkpoints import FLOAT8, Form
from tests.support.tiny_models import make_small
from tests.support.tiny_vision_models import make_tiny_gemma3, make_tiny_llava, make_tiny_qwen_vl
from tests.support.token_engine import TokenEngine, relative_error
from tests.support.xcomposer_reference import make_tiny_xcomposer

PROMPT = within(VOCAB, LARGE_TOKENS)

# Between them: windows, soft caps, output norms; ALiBi, LayerNorm; sinks, experts; latent attention, shared experts.
# Then: no input norms; norms after rotation; learned positions; a norm of each head; chunks. Then states: gated delta,
# Kimi delta, Mamba-2 alone and alongside attention, plain experts, lightning attention, short convolutions.
# Then layers of several kinds, shared keys, experts alongside an MLP, xIELU.
VARIED = [
    *("Llama", "Gemma 2", "Falcon RW", "GPT-OSS", "DeepSeek-V2"),
    *("OLMo 3", "Hunyuan", "GPT-2", "StableLM 12B", "Llama 4"),
    *("Qwen3.5", "Kimi Linear", "Mamba2", "Jamba", "Falcon-H1", "Nemotron 3", "MiniMax-Text-01", "LFM2"),
    *("Gemma 3n", "Gemma 4 E2B", "Gemma 4 26B", "Apertus"),
]


@pytest.fixture(params=cuda_devices() or ["none"])
def on_cuda(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Engines that are made meanwhile can use CUDA; returns the number of GPUs."""
    if request.param == "none":
        pytest.skip("CUDA is not built for the tests, neither emulated nor for a GPU: run `make build-tests`")
    module = load_module(request.param)
    monkeypatch.setattr(engine_module, "_turbomind", module)
    count: int = module.device_count()
    return count


@pytest.fixture
def two_gpus(on_cuda: int, request: pytest.FixtureRequest) -> None:
    """Engines that are made meanwhile can use CUDA, on two GPUs."""
    if on_cuda < 2:
        pytest.skip("needs two GPUs")
    if request.node.callspec.params["on_cuda"] == "gpu":
        try:
            ctypes.CDLL("libnccl.so.2")
        except OSError as error:
            pytest.skip(f"needs NCCL: {error}")


@pytest.mark.alike(max_cases=2)
@pytest.mark.parametrize("name", VARIED)
def test_logits_equal_transformers_in_chunks_in_steps_and_after_cached_prefixes(
    name: str, tmp_path: Path, on_cuda: int
) -> None:
    check_logits(name, tmp_path / "model", (4, 3), device="cuda")


@pytest.mark.alike(max_cases=1)
@pytest.mark.parametrize(
    "settings",
    [
        {"dtype": "bfloat16"},
        {"dtype": "float16"},
        {"dtype": "float32", "quant_policy": 8},
        {"dtype": "float32", "quant_policy": 4},
        {"dtype": "float32", "weight_bits": 8},
        {"dtype": "float32", "weight_bits": 4},
    ],
    ids=str,
)
def test_formats_are_about_as_exact_as_on_the_cpu(settings: dict[str, Any], tmp_path: Path, on_cuda: int) -> None:
    directory = make_small(tmp_path / "model", "LlamaForCausalLM", hidden_size=64, num_attention_heads=2, head_dim=32)

    def logits(**more: Any) -> torch.Tensor:
        with TokenEngine(directory, **more) as engine:
            return engine.generate(PROMPT, 1, "all")[1]

    exact = logits(device="cpu", dtype="float32")
    on_cpu = relative_error(logits(device="cpu", **settings), exact)
    # Both round alike what is stored, but not what is computed: CUDA rounds activations to 16 bits, the CPU to 8 bits
    # or not at all.
    assert relative_error(logits(device="cuda", **settings), exact) < 1.5 * on_cpu + 0.03


def check_library(operator: str, directory: Path, prompt: list[int], chunk: int, launches: int) -> None:
    """See that an engine with an emulated library answers as well as without, and launches it so often, or more."""
    module = engine_module._turbomind
    if not hasattr(module, "set_library"):
        pytest.skip("on a GPU the build says which library there is")

    def logits(library: int, **more: Any) -> tuple[torch.Tensor, torch.Tensor]:
        module.set_library(operator, library)
        with TokenEngine(directory, num_tokens_per_iter=chunk, **more) as engine:
            return engine.generate(prompt, 1, "all")[1], engine.generate(prompt, 6, "generation")[1]

    try:
        exact = logits(0, device="cpu", dtype="float32")
        native = logits(0, device="cuda", dtype="bfloat16")
        reference = logits(1, device="cuda", dtype="bfloat16")
        assert module.library_launches(operator) >= launches
    finally:
        module.set_library(operator, 0)
    for exactly, native_response, other in zip(exact, native, reference, strict=True):
        assert relative_error(other, exactly) < 1.5 * relative_error(native_response, exactly) + 0.01


def test_a_librarys_latent_attention_serves_prompts_and_captured_steps(tmp_path: Path, on_cuda: int) -> None:
    latents = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 16, "v_head_dim": 16}
    sizes = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "q_lora_rank": None}
    directory = make_small(tmp_path / "model", "DeepseekV2ForCausalLM", num_key_value_heads=4, **latents, **sizes)
    # Of two layers: prompts in chunks, the first again from the cache but for its end; five steps; the self-check and
    # warm-up besides.
    check_library("latents", directory, PROMPT, 20, 2 * (-(-len(PROMPT) // 20) + 1 + 5))


def test_a_librarys_attention_serves_long_chunks_of_prompts(tmp_path: Path, on_cuda: int) -> None:
    directory = make_small(tmp_path / "model", "LlamaForCausalLM", head_dim=64)
    # Of two layers: a chunk of 70 rows; the one past it, and the prompt again from the cache, are of few rows. The
    # self-check besides.
    check_library("prompts", directory, PROMPT * 2, 70, 2 + 1)


def test_a_librarys_products_of_experts_serve_prompts(tmp_path: Path, on_cuda: int) -> None:
    directory = make_small(tmp_path / "model", "MixtralForCausalLM", **EXPERTS, sliding_window=None)
    # Of two layers, two products of one chunk of 100 rows; the others are of few rows. the self-check besides.
    check_library("experts", directory, PROMPT * 3, 100, 2 * 2 + 1)


@pytest.mark.alike(max_cases=1)
@pytest.mark.parametrize(
    ("architecture", "form"),
    [
        ("LlamaForCausalLM", Form("compressed-tensors", torch.int8, "channel")),
        ("LlamaForCausalLM", Form("fp8", FLOAT8, "block", "weight_scale_inv", block=(48, 32))),
        ("Qwen2MoeForCausalLM", Form("smooth_quant", FLOAT8, "channel", "scale")),
    ],
    ids=str,
)
def test_codes_with_scales_are_multiplied_as_on_the_cpu(
    architecture: str, form: Form, tmp_path: Path, on_cuda: int
) -> None:
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "num_hidden_layers": 1}
    sizes = {"hidden_size": 64, "num_attention_heads": 2, "initializer_range": 0.05}
    source = make_small(tmp_path / "source", architecture, **sizes, **(experts if "Moe" in architecture else {}))
    quantize_checkpoint(source, tmp_path / "model", form)

    def logits(device: str) -> torch.Tensor:
        with TokenEngine(tmp_path / "model", device=device, dtype="float32") as engine:
            return engine.generate(PROMPT, 1, "all")[1]

    # int8 costs 1 % on the CPU, which rounds activations to 8 bits; float8 what rounding them to bfloat16 does.
    assert relative_error(logits("cuda"), logits("cpu")) < (0.03 if form.dtype == torch.int8 else 0.01)


@pytest.mark.alike(max_cases=2)
@pytest.mark.parametrize(
    ("architecture", "form", "limit"),
    [
        (
            "Starcoder2ForCausalLM",
            Form("compressed-tensors", torch.int8, "channel", unquantized=("lm_head", "c_fc", "o_proj")),
            1e-4,
        ),
        ("LlamaForCausalLM", Form("compressed-tensors", torch.int8, "channel"), 0.02),
        ("LlamaForCausalLM", Form("smooth_quant", FLOAT8, "channel", "scale"), 0.05),
        ("LlamaForCausalLM", Form("fp8", FLOAT8, "block", "weight_scale_inv", block=(48, 32)), 0.01),
    ],
    ids=str,
)
def test_a_long_prompt_is_multiplied_in_8_bits(
    architecture: str, form: Form, limit: float, tmp_path: Path, on_cuda: int
) -> None:
    sizes = {"hidden_size": 64, "num_attention_heads": 2, "initializer_range": 0.05, "num_hidden_layers": 1}
    source = make_small(tmp_path / "source", architecture, **sizes)
    quantize_checkpoint(source, tmp_path / "model", form)
    ids = (PROMPT * 5)[:200]  # at least kDequantizeRows of linear.cu

    def logits(device: str) -> torch.Tensor:
        settings = {"dtype": "float32", "num_tokens_per_iter": 256}
        with TokenEngine(tmp_path / "model", device=device, **settings) as engine:
            return engine.generate(ids, 1, "generation")[1]

    # With a scale an output x becomes int8, by row as on the CPU, where these 64 inputs are one group, or float8, whose
    # steps are 2^-4 and which the CPU does not round x to. Blocks leave x half precision. Between the layers of a gated
    # MLP, which StarCoder2's is not, and before an o_proj of codes, rows are bfloat16: numbers fall to other sides of
    # borders between codes, which are 1 / 127 of a row's largest apart.
    assert relative_error(logits("cuda"), logits("cpu")) < limit


def test_responses_in_a_crowd_are_those_alone(tmp_path: Path, on_cuda: int) -> None:
    directory = make_small(tmp_path / "model", "LlamaForCausalLM")
    prompts = [string.ascii_letters[first : 13 * first] for first in range(1, 5)] + ["another one"]
    greedy = GenerationConfig(max_new_tokens=5, ignore_eos=True)
    # So few blocks that some of them must wait, be preempted and computed again.
    crowded = TurbomindEngineConfig(
        device="cuda",
        dtype="float32",
        session_len=96,
        max_batch_size=4,
        max_prefill_token_num=64,
        cache_block_seq_len=16,
        cache_max_entry_count=7,
    )
    alone = TurbomindEngineConfig(device="cpu", dtype="float32", session_len=96, max_batch_size=1)
    with pipeline(str(directory), backend_config=crowded) as pipe:
        together = [response.token_ids for response in pipe(prompts, gen_config=greedy)]
    with pipeline(str(directory), backend_config=alone) as pipe:
        assert together == [pipe(prompt, gen_config=greedy).token_ids for prompt in prompts]


def test_more_sequences_than_logits_are_computed_at_once_decode_together(tmp_path: Path, on_cuda: None) -> None:
    directory = make_small(tmp_path / "model", "LlamaForCausalLM")
    greedy = GenerationConfig(max_new_tokens=4, ignore_eos=True)
    config = TurbomindEngineConfig(
        device="cuda", dtype="float32", session_len=32, max_batch_size=300, max_prefill_token_num=400
    )
    prompts = [chr(ord("a") + number % 20) for number in range(300)]
    with pipeline(str(directory), backend_config=config) as pipe:
        responses = [tuple(response.token_ids) for response in pipe(prompts, gen_config=greedy)]
        alone = [tuple(pipe(prompt, gen_config=greedy).token_ids) for prompt in prompts[:20]]
    assert responses == alone * 15


def test_a_share_of_the_memory_is_what_the_largest_step_leaves(tmp_path: Path, on_cuda: int) -> None:
    directory = make_small(tmp_path / "model", "LlamaForCausalLM")
    with TokenEngine(directory, device="cuda", cache_max_entry_count=0.1) as engine:
        assert len(engine.generate(PROMPT, 2, "generation")[0]) == 2


# Graphs are captured with their sums over ranks in them: a response's second and third step.
@pytest.mark.alike(max_cases=1)
@pytest.mark.parametrize("name", ["Llama", "Falcon 7B", "GPT-OSS", "DeepSeek-V2"])
def test_two_ranks_compute_what_transformers_computes(name: str, tmp_path: Path, two_gpus: None) -> None:
    check_logits(name, tmp_path / "model", (6, 3), device="cuda", tp=2)


@pytest.mark.alike(max_cases=1)
@pytest.mark.parametrize("settings", [{"dtype": "bfloat16"}, {"weight_bits": 4}, {"quant_policy": 8}], ids=str)
def test_two_ranks_are_about_as_exact_as_one(settings: dict[str, Any], tmp_path: Path, two_gpus: None) -> None:
    directory = make_small(tmp_path / "model", "LlamaForCausalLM", hidden_size=64, num_attention_heads=2, head_dim=32)

    def logits(**more: Any) -> torch.Tensor:
        with TokenEngine(directory, device="cuda", **more) as engine:
            return engine.generate(PROMPT, 1, "all")[1]

    exact = logits()
    assert relative_error(logits(tp=2, **settings), exact) < 1.5 * relative_error(logits(**settings), exact) + 0.01


def test_more_ranks_than_devices_are_refused(tmp_path: Path, on_cuda: int) -> None:
    ranks = next(count for count in (2, 4, 8, 16, 32) if count > on_cuda)
    sizes = {"hidden_size": 64, "num_attention_heads": 32, "intermediate_size": 512}
    directory = make_small(tmp_path / "model", "LlamaForCausalLM", **sizes)
    with pytest.raises(ValueError, match=f"tp={ranks} needs {ranks} GPUs, found {on_cuda}"):
        TokenEngine(directory, device="cuda", tp=ranks)


def test_a_rank_without_memory_is_an_error_and_no_hang(tmp_path: Path, two_gpus: None) -> None:
    directory = make_small(tmp_path / "model", "LlamaForCausalLM")
    with pytest.raises(RuntimeError, match=r"not enough GPU memory: \d+ MiB"):
        TokenEngine(directory, device="cuda", tp=2, cache_block_seq_len=512, cache_max_entry_count=4e6)


def test_too_little_memory_of_the_device_says_how_much_and_what_lowers_it(tmp_path: Path, on_cuda: int) -> None:
    directory = make_small(tmp_path / "model", "LlamaForCausalLM")
    with pytest.raises(
        RuntimeError, match=r"not enough GPU memory: \d+ MiB for the cache: .* lower cache_max_entry_count"
    ):
        TokenEngine(directory, device="cuda", cache_block_seq_len=512, cache_max_entry_count=4e6)  # half a TB


def test_where_cuda_cannot_be_had_the_error_says_why(tmp_path: Path) -> None:
    directory = make_small(tmp_path / "model", "LlamaForCausalLM")
    if "cuda" in engine_module._turbomind.available_devices():
        pytest.skip("this build has CUDA")
    # A build for GPUs on a machine without one says that.
    with pytest.raises((ValueError, RuntimeError), match=r"make build CUDA=1|no usable NVIDIA GPU"):
        TokenEngine(directory, device="cuda")


@pytest.mark.parametrize(
    "make",
    [
        make_tiny_llava,
        partial(make_tiny_qwen_vl, kind="Qwen3VL"),
        make_tiny_gemma3,
        make_tiny_mllama,
        make_tiny_cogvlm,
        make_tiny_xcomposer,
    ],
    ids=["plain", "grid", "ahead", "looked at", "own weights", "low rank"],
)
def test_images_are_seen_as_on_the_cpu(tmp_path: Path, on_cuda: int, make: Callable[[Path], Path]) -> None:
    directory = make(tmp_path / "model")
    prompts = [
        ("what is it?", make_image(40, 60)),
        "only a text",
        ("what is it?", [make_image(40, 60, 1), make_image(9, 9)]),
    ]
    config = GenerationConfig(max_new_tokens=3, do_sample=False, output_logits="all", ignore_eos=True)

    def logits(device: str) -> list[torch.Tensor]:
        settings = TurbomindEngineConfig(
            device=device, session_len=128, cache_max_entry_count=32, cache_block_seq_len=16, num_tokens_per_iter=20
        )
        with pipeline(str(directory), settings) as model:
            return [response.logits for response in model(prompts, config)]

    on_cpu, on_gpu = logits("cpu"), logits("cuda")
    assert max(relative_error(*pair) for pair in zip(on_gpu, on_cpu, strict=True)) < 1e-4
    assert relative_error(on_cpu[0][:20], on_cpu[2][:20]) > 0.01, "the image makes no difference"


def test_adapters_add_what_they_add_on_the_cpu(tmp_path: Path, on_cuda: int) -> None:
    directory = make_small(tmp_path / "model", "LlamaForCausalLM")
    adapters = {name: str(make_adapter(tmp_path / name, directory, seed=ord(name))) for name in "ab"}
    prompt = within(256, PROMPT)
    found = {}
    for device in ("cpu", "cuda"):
        with TokenEngine(directory, device=device, adapters=adapters) as engine:
            # Steps without adapters are launched as graphs in between.
            found[device] = [engine.generate(prompt, 5, adapter=name) for name in (None, "a", "b", None, "a")]
    for native, reference in zip(found["cuda"], found["cpu"], strict=True):
        assert native[0] == reference[0]
        assert relative_error(native[1], reference[1]) < 1e-4
    assert relative_error(found["cuda"][1][1][: len(prompt)], found["cuda"][0][1][: len(prompt)]) > 0.01
