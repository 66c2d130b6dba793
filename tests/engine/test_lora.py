"""LoRA adapters: what they compute, side by side, and what is refused.

An adapter stands for the model with `scale B A` added to its matrices. That model is made and run by `transformers`,
or, in the layouts of other families, by the engine without adapters, which tests/engine/test_model_families.py holds
against `transformers`.
"""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from lmdeploy import GenerationConfig, TurbomindEngineConfig, pipeline
from lmdeploy.turbomind.engine import Engine
from tests.engine.test_model_families import CASES, FURTHER, PROMPT, TOLERANCE
from tests.support.adapters import ATTENTION, MLP, adapter_mib, change_tensors, make_adapter, merge
from tests.support.both_engines import WITHOUT_REUSE
from tests.support.prompts import CONVERSATIONS
from tests.support.quantized_checkpoints import Scheme, quantize_checkpoint
from tests.support.tiny_models import make_tiny, make_tiny_llama
from tests.support.token_engine import TokenEngine, relative_error

ROUNDED_ACTIVATIONS = 0.05  # alongside codes, inputs are rounded to 8 bits (kernels/linear.h)


def reference_logits(directory: Path, ids: list[int]) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        logits: torch.Tensor = model(torch.tensor([ids])).logits[0]
    return logits


def check_merged(directory: Path, adapter: Path, scale: float = 2.0, **settings: Any) -> None:
    """Compare an adapter's logits with those of `transformers`, in chunks, in steps and after a cached prefix."""
    merged = merge(directory, adapter, directory.parent / "merged", scale)
    with TokenEngine(directory, adapters={"own": str(adapter)}, **settings) as engine:
        base = engine.generate(PROMPT, 8)[1]
        response, logits = engine.generate(PROMPT, 8, adapter="own")
        assert relative_error(logits, reference_logits(merged, PROMPT + response[:-1])) < TOLERANCE
        assert relative_error(logits[: len(PROMPT)], base[: len(PROMPT)]) > 0.01
        longer = PROMPT + response + FURTHER
        again, logits = engine.generate(longer, 4, "generation", adapter="own")
        assert engine.matched_tokens() >= 48
        assert relative_error(logits, reference_logits(merged, longer + again[:-1])[len(longer) - 1 :]) < TOLERANCE


@pytest.mark.alike(max_cases=3)
@pytest.mark.parametrize("name", ["Llama", "Llama with biases", "Qwen2", "Qwen3", "Gemma 2", "Granite"])
def test_logits_are_those_of_the_merged_model(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    directory = make_tiny(tmp_path / "model", case.architecture, **case.overrides)
    check_merged(directory, make_adapter(tmp_path / "adapter", directory))


@pytest.mark.alike(max_cases=2)
@pytest.mark.parametrize("targets", [("q_proj",), ("v_proj", "o_proj"), ("k_proj", "up_proj"), ("down_proj",)])
def test_any_of_the_layers_may_be_adapted(targets: tuple[str, ...], tmp_path: Path) -> None:
    directory = make_tiny_llama(tmp_path / "model")
    check_merged(directory, make_adapter(tmp_path / "adapter", directory, targets=targets, rank=3, alpha=6))


def test_ranks_and_scales_are_each_layers_own(tmp_path: Path) -> None:
    directory = make_tiny_llama(tmp_path / "model")
    ranks = {"q_proj": 8, "layers.1.mlp.down_proj": 5}
    alphas = {
        "^layers.1.mlp.down_proj": 99.0,  # not the whole name
        "proj": 99.0,  # no end after a dot
        "q_proj": 16.0,
        "model.layers.0.self_attn.q_proj": 99.0,  # a later one
        r"^model\.layers\.1\.mlp\.down_proj$": 10.0,
    }
    check_merged(directory, make_adapter(tmp_path / "adapter", directory, ranks=ranks, alpha_pattern=alphas))


def test_rank_stabilized_adapters_are_scaled_by_the_root_of_the_rank(tmp_path: Path) -> None:
    directory = make_tiny_llama(tmp_path / "model")
    check_merged(directory, make_adapter(tmp_path / "adapter", directory, alpha=3.0, use_rslora=True), 3.0 / 4**0.5)


# Layers that are stored joined, sliced, or with their rows in another order, and the names of these.
LAYOUTS = {
    "Phi-3": ("qkv_proj", "o_proj", "gate_up_proj", "down_proj"),
    "ChatGLM3": ("query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"),
    "InternLM2": ("wqkv", "wo", "w1", "w2", "w3"),
    "Falcon 40B": ("query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"),
    "Qwen": ("c_attn", "c_proj", "w1", "w2"),
    "StarCoder2": (*ATTENTION, "c_fc", "c_proj"),
    "Baichuan 7B": ("W_pack", "o_proj", *MLP),
    "Qwen3.5": ("in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b", "out_proj", "q_proj", "down_proj"),
    "Qwen3-Next": ("in_proj_qkvz", "in_proj_ba", "out_proj", "k_proj"),
    "Granite 4": ("in_proj", "out_proj", "q_proj"),
    "LFM2": ("in_proj", "out_proj", "w1"),
    "Falcon-H1 with norms": ("in_proj", "out_proj", "v_proj", "down_proj"),
}


@pytest.mark.alike(max_cases=3)
@pytest.mark.parametrize("name", LAYOUTS)
def test_joined_and_reordered_layers_are_adapted_as_the_checkpoint_names_them(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    directory = make_tiny(tmp_path / "model", case.architecture, **case.overrides)
    case.publish(directory)
    adapter = make_adapter(tmp_path / "adapter", directory, targets=LAYOUTS[name])
    with TokenEngine(merge(directory, adapter, tmp_path / "merged")) as engine:
        tokens, expected = engine.generate(PROMPT, 4)
    with TokenEngine(directory, adapters={"own": str(adapter)}) as engine:
        base = engine.generate(PROMPT, 1)[1]
        response, logits = engine.generate(PROMPT, 4, adapter="own")
    assert response == tokens
    assert relative_error(logits, expected) < TOLERANCE
    assert relative_error(logits[: len(PROMPT)], base) > 0.01


@pytest.mark.alike(max_cases=1)
@pytest.mark.parametrize("tp", [2, 4])
def test_ranks_together_compute_what_one_does(tp: int, tmp_path: Path) -> None:
    directory = make_tiny_llama(tmp_path / "model", num_attention_heads=4, num_key_value_heads=2)
    check_merged(directory, make_adapter(tmp_path / "adapter", directory), tp=tp)


QUANTIZED = {
    "awq": Scheme(group_size=128),
    "gptq 8 bits": Scheme("gptq", bits=8),
    "gptq ordered": Scheme("gptq", desc_act=True),
}


@pytest.mark.alike(max_cases=2)
@pytest.mark.parametrize(("name", "tp"), [*((name, 1) for name in QUANTIZED), ("gptq ordered", 2)])
def test_codes_are_adapted_as_the_numbers_they_stand_for(name: str, tp: int, tmp_path: Path) -> None:
    sizes = {"hidden_size": 128, "intermediate_size": 384, "num_attention_heads": 4, "num_key_value_heads": 2}
    source = make_tiny_llama(tmp_path / "source", initializer_range=0.05, **sizes)
    values = quantize_checkpoint(source, tmp_path / "model", QUANTIZED[name])
    adapter = make_adapter(tmp_path / "adapter", source)
    save_file(load_file(source / "model.safetensors") | values, source / "model.safetensors", {"format": "pt"})
    merged = merge(source, adapter, tmp_path / "merged")
    with TokenEngine(tmp_path / "model", adapters={"own": str(adapter)}, tp=tp) as engine:
        base = engine.generate(PROMPT, 1)[1]
        logits = engine.generate(PROMPT, 1, adapter="own")[1]
    exact = reference_logits(merged, PROMPT)
    assert relative_error(logits, exact) < ROUNDED_ACTIVATIONS < 0.2 * relative_error(base, exact)


@pytest.mark.alike(max_cases=1)
@pytest.mark.parametrize("bits", [8, 4])
def test_a_base_rounded_while_loading_is_adapted_too(bits: int, tmp_path: Path) -> None:
    directory = make_tiny_llama(tmp_path / "model", hidden_size=64, intermediate_size=128, initializer_range=0.02)
    adapter = make_adapter(tmp_path / "adapter", directory)
    merged = merge(directory, adapter, tmp_path / "merged")
    with TokenEngine(directory, weight_bits=bits, adapters={"own": str(adapter)}) as engine:
        logits = engine.generate(PROMPT, 1, adapter="own")[1]
    assert relative_error(logits, reference_logits(merged, PROMPT)) < (0.03 if bits == 8 else 0.3)


# ---- side by side ----

SAMPLED = GenerationConfig(
    max_new_tokens=12, do_sample=True, temperature=0.9, top_k=50, top_p=0.95, random_seed=5, logprobs=3, ignore_eos=True
)
NAMES = (None, "a", "b", "c")
TALKS = [CONVERSATIONS[0], CONVERSATIONS[8], CONVERSATIONS[17]]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("tiny") / "model", hidden_size=48, max_position_embeddings=2048)


@pytest.fixture(scope="module")
def adapters(directory: Path) -> dict[str, str]:
    sizes = {"a": 4, "b": 11, "c": 16}
    return {
        name: str(make_adapter(directory.parent / name, directory, rank=rank, alpha=2.0 * rank, seed=rank))
        for name, rank in sizes.items()
    }


def config(adapters: dict[str, str], **settings: Any) -> TurbomindEngineConfig:
    defaults = {"dtype": "float32", "cache_max_entry_count": 1600, "cache_block_seq_len": 16, "session_len": 1024}
    return TurbomindEngineConfig(**(WITHOUT_REUSE | defaults | settings), adapters=adapters)


def trace(response: Any) -> tuple[Any, ...]:
    return response.token_ids, [list(entry.items()) for entry in response.logprobs], response.text


@pytest.fixture(scope="module")
def alone(directory: Path, adapters: dict[str, str]) -> Iterator[dict[str | None, list[tuple[Any, ...]]]]:
    """Responses of conversations with each adapter, each by itself."""
    with pipeline(str(directory), config(adapters)) as model:
        yield {name: [trace(model(c, SAMPLED, adapter_name=name)) for c in TALKS] for name in NAMES}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_tokens_per_iter": 24, "max_batch_size": 8},
        {"enable_prefix_caching": True},
        {"cache_max_entry_count": 64, "session_len": 512, "enable_prefix_caching": True},
    ],
    ids=["in one batch", "in small chunks", "with prefix hits", "with preemption"],
)
def test_responses_of_all_adapters_at_once_are_bitwise_those_alone(
    directory: Path, adapters: dict[str, str], alone: dict[str | None, list[tuple[Any, ...]]], settings: dict[str, Any]
) -> None:
    assert len({str(alone[name]) for name in NAMES}) == len(NAMES)
    with pipeline(str(directory), config(adapters, **settings)) as model:
        for _ in range(2):
            streams = {name: model.stream_infer(TALKS, SAMPLED, adapter_name=name) for name in NAMES}
            pieces: dict[str | None, list[list[Any]]] = {name: [[] for _ in TALKS] for name in NAMES}
            while streams:  # taking turns, so that all run at a time
                for name in list(streams):
                    piece = next(streams[name], None)
                    if piece is None:
                        del streams[name]
                    else:
                        pieces[name][piece.index].append(piece)
            for name in NAMES:
                for index, streamed in enumerate(pieces[name]):
                    assert [token for piece in streamed for token in piece.token_ids] == alone[name][index][0]
                    logprobs = [list(entry.items()) for piece in streamed for entry in piece.logprobs or []]
                    assert logprobs == alone[name][index][1]


def test_a_cached_prefix_is_found_by_its_own_adapter_alone(directory: Path, adapters: dict[str, str]) -> None:
    with TokenEngine(directory, adapters=adapters) as engine:
        engine.generate(PROMPT, 1, "generation", adapter="a")
        for other in (None, "b"):
            engine.generate(PROMPT, 1, "generation", adapter=other)
            assert engine.matched_tokens() == 0
        engine.generate(PROMPT, 1, "generation", adapter="a")
        assert engine.matched_tokens() == len(PROMPT) - 1


def test_a_session_belongs_to_the_adapter_that_it_began_with(directory: Path, adapters: dict[str, str]) -> None:
    greedy = GenerationConfig(max_new_tokens=6, ignore_eos=True)
    with pipeline(str(directory), config(adapters)) as model:

        async def turns(*names: str | None) -> list[list[int]]:
            found = []
            for index, name in enumerate(names):
                pieces = [
                    piece
                    async for piece in model.generate(
                        "Hi", 7, greedy, sequence_start=index == 0, sequence_end=False, adapter_name=name
                    )
                ]
                found.append([token for piece in pieces for token in piece.token_ids])
            return found

        same = asyncio.run(turns("a", "a", "a"))
        for names in (("a", None), ("a", "b"), (None, "a")):
            with pytest.raises(ValueError, match=r"began with .* name the same in each turn"):
                asyncio.run(turns(*names))
        assert asyncio.run(turns("b", "b")) != same[:2]
        with model.session(greedy, adapter_name="a") as session:
            assert [list(session("Hi", stream_response=False).token_ids) for _ in range(3)] == same


# ---- what is refused ----


@pytest.fixture(scope="module")
def engine(directory: Path) -> Iterator[Engine]:
    with TokenEngine(directory) as engine:
        yield engine.engine


REJECTED_FIELDS = {
    "modules_to_save": (["lm_head"], "modules_to_save is .* whole layers"),
    "use_dora": (True, "use_dora .* DoRA"),
    "bias": ("all", "bias is .*only none"),
    "peft_type": ("IA3", "peft_type must be LORA"),
    "init_lora_weights": ("pissa_niter_4", "changes the base's own weights"),
    "lora_bias": (True, "lora_bias is true, which is not supported"),
    "layer_replication": ([[0, 1]], "layer_replication is .*, which is not supported"),
    "some_later_field": (3, "some_later_field is 3, which is not supported"),
    "r": (5, "a rank of 5.0*, but its tensors have 4"),
    "rank_pattern": ({r"((\w|\.)*)*x": 4}, r"rank_pattern has the pattern .*expected the name of a layer or its end"),
    "alpha_pattern": ({r"layers\.[0-3]\.mlp": 3.0}, "alpha_pattern has the pattern .*expected the name of a layer"),
}


@pytest.mark.parametrize("field", REJECTED_FIELDS)
def test_what_is_no_plain_adapter_is_refused_by_name(
    field: str, directory: Path, engine: Engine, tmp_path: Path
) -> None:
    value, message = REJECTED_FIELDS[field]
    adapter = make_adapter(tmp_path / "adapter", directory, **{field: value})
    with pytest.raises(ValueError, match=f"adapter own: .*{message}"):
        engine.load_adapter("own", str(adapter))


def test_an_adapter_of_another_base_is_refused_with_the_shapes(directory: Path, engine: Engine, tmp_path: Path) -> None:
    wider = make_tiny_llama(tmp_path / "wider", hidden_size=64)
    with pytest.raises(ValueError, match=r"of another base: model.layers.0.\S+ has lora_A \[4, 64\]"):
        engine.load_adapter("own", str(make_adapter(tmp_path / "adapter", wider)))
    deeper = make_tiny_llama(tmp_path / "deeper", hidden_size=48, num_hidden_layers=3)
    with pytest.raises(ValueError, match=r"adds to model.layers.2.\S+, which is no linear layer of this model"):
        engine.load_adapter("own", str(make_adapter(tmp_path / "deep", deeper)))


def test_layers_that_cannot_be_adapted_are_refused_by_name(directory: Path, engine: Engine, tmp_path: Path) -> None:
    of_output = make_adapter(tmp_path / "output", directory)
    names = [f"base_model__model__lm_head__lora_{part}__weight" for part in "AB"]
    change_tensors(of_output, **{name: torch.ones(4, 4) for name in names})
    with pytest.raises(ValueError, match=r"adds to lm_head, .* output layer are not"):
        engine.load_adapter("own", str(of_output))
    # Of embeddings, the tensors are those of a layer whose inputs are tokens.
    with pytest.raises(ValueError, match=r"of another base: model.embed_tokens has lora_A \[4, 48\]"):
        engine.load_adapter("own", str(make_adapter(tmp_path / "embedding", directory, targets=("embed_tokens",))))
    case = CASES["Mixtral"]
    experts = make_tiny(tmp_path / "experts", case.architecture, **case.overrides)
    case.publish(experts)
    of_experts = make_adapter(tmp_path / "of experts", experts, targets=("w1", "w2", "w3", "gate"))
    with TokenEngine(experts) as loaded:
        with pytest.raises(ValueError, match=r"adds to model.layers.0.block_sparse_moe.*experts"):
            loaded.engine.load_adapter("own", str(of_experts))
        loaded.engine.load_adapter("own", str(make_adapter(tmp_path / "fine", experts, targets=ATTENTION)))


def test_tensors_that_are_no_pair_of_matrices_are_refused_by_name(
    directory: Path, engine: Engine, tmp_path: Path
) -> None:
    tensors = {
        "base_model__model__lm_head__weight": (
            torch.ones(2, 2),
            "lm_head.weight is a whole layer, .*merge the adapter",
        ),
        "base_model__model__lm_head__base_layer__weight": (torch.ones(2, 2), "holds the base's lm_head, but no lora_A"),
        "base_model__model__model__layers__0__mlp__up_proj__base_layer__weight": (
            torch.ones(3, 48),
            r"up_proj.base_layer.weight has the shape \[3, 48\], but what is added to it \[\d+, 48\]",
        ),
        "base_model__model__layers__0__mlp__up_proj__lora_A__weight": (torch.ones(4, 48), "which is one layer"),
        "base_model__model__x__lora_A__weight": (torch.ones(2, 2), "x has no lora_B"),
        "base_model__model__model__layers__0__mlp__up_proj__lora_A__weight": (
            torch.ones(3, 48),
            "expected the same rank",
        ),
        "base_model__model__model__layers__0__mlp__up_proj__lora_B__weight": (torch.ones(4), "is no matrix"),
    }
    for index, (name, (tensor, message)) in enumerate(tensors.items()):
        adapter = make_adapter(tmp_path / str(index), directory)
        change_tensors(adapter, **{name: tensor})
        with pytest.raises(ValueError, match=message):
            engine.load_adapter("own", str(adapter))


def test_files_that_are_missing_or_cut_off_are_refused(directory: Path, engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such directory"):
        engine.load_adapter("own", str(tmp_path / "nowhere"))
    adapter = make_adapter(tmp_path / "adapter", directory)
    weights = adapter / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    with pytest.raises(ValueError, match="truncated"):
        engine.load_adapter("own", str(adapter))
    weights.rename(adapter / "adapter_model.bin")
    with pytest.raises(ValueError, match="safe_serialization"):
        engine.load_adapter("own", str(adapter))


def test_unknown_and_taken_names_are_refused_and_disturb_nobody(directory: Path, adapters: dict[str, str]) -> None:
    with pipeline(str(directory), config(adapters)) as model:
        with pytest.raises(ValueError, match=r"adapter_name must be one of adapters \(a, b, c\), got 'd'"):
            model("Hi", adapter_name="d")
        with pytest.raises(ValueError, match="there is no adapter d; there are a, b, c"):
            model.engine.submit([1], GenerationConfig(), print, adapter_name="d")
        with pytest.raises(ValueError, match="an adapter a already"):
            model.load_adapter("a", adapters["b"])
        with pytest.raises(ValueError, match="no adapter d"):
            model.unload_adapter("d")
        with pytest.raises(ValueError, match="1 to 256 bytes"):
            model.load_adapter("x" * 300, adapters["a"])
        assert model("Hi", max_new_tokens=2, adapter_name="a").generate_token_len == 2


# ---- loading and unloading ----


def test_adapters_come_and_go_while_others_answer(
    directory: Path, adapters: dict[str, str], alone: dict[str | None, list[tuple[Any, ...]]]
) -> None:
    with pipeline(str(directory), config({"a": adapters["a"]})) as model:
        steady = model.stream_infer(TALKS, SAMPLED, adapter_name="a")
        found: list[list[int]] = [[] for _ in TALKS]
        for round_, piece in enumerate(steady):
            found[piece.index] += piece.token_ids
            name = ("b", "c")[round_ % 2]
            if round_ % 8 < 2:
                model.load_adapter(name, adapters[name])
                assert trace(model(CONVERSATIONS[0], SAMPLED, adapter_name=name)) == alone[name][0]
                model.unload_adapter(name)
                with pytest.raises(ValueError, match="adapter_name must be one of"):
                    model(CONVERSATIONS[0], SAMPLED, adapter_name=name)
        assert found == [response[0] for response in alone["a"]]


def test_an_adapter_that_is_unloaded_finishes_its_responses(
    directory: Path, adapters: dict[str, str], alone: dict[str | None, list[tuple[Any, ...]]]
) -> None:
    with pipeline(str(directory), config(adapters)) as model:
        pieces = model.stream_infer(CONVERSATIONS[:1], SAMPLED, adapter_name="b")
        tokens = list(next(pieces).token_ids)
        model.unload_adapter("b")
        assert [*tokens, *(token for piece in pieces for token in piece.token_ids)] == alone["b"][0][0]
        model.load_adapter("b", adapters["c"])  # the name is free, and what was cached of the old one is not found
        assert trace(model(CONVERSATIONS[0], SAMPLED, adapter_name="b")) == alone["c"][0]


def test_more_adapters_than_fit_in_memory_take_turns(directory: Path, tmp_path: Path) -> None:
    sizes = {"targets": MLP, "rank": 4096, "dtype": torch.float32, "alpha": 0.01}
    names = [f"adapter {index}" for index in range(4)]
    paths = {name: str(make_adapter(tmp_path / name, directory, seed=seed, **sizes)) for seed, name in enumerate(names)}
    greedy = GenerationConfig(max_new_tokens=4, ignore_eos=True, logprobs=1)
    with pipeline(str(directory), config(paths, max_adapter_mib=1024)) as model:
        expected = {name: trace(model("Hi", greedy, adapter_name=name)) for name in names}
    with pytest.raises(ValueError, match=r"takes .* MiB, but all adapters together get 5 MiB; raise max_adapter_mib"):
        TokenEngine(directory, adapters=paths, max_adapter_mib=5)
    room = adapter_mib(Path(paths[names[0]])) * 2 + 1
    with pipeline(str(directory), config(paths, max_adapter_mib=room)) as model:
        streams = [(name, model.stream_infer(["Hi"], greedy, adapter_name=name)) for name in names * 3]
        with ThreadPoolExecutor(len(streams)) as threads:
            responses = threads.map(lambda stream: list(stream[1]), streams)
            for (name, _), pieces in zip(streams, responses, strict=True):
                assert [token for piece in pieces for token in piece.token_ids] == expected[name][0]
