"""Models whose layers keep a state: the same bits whatever happens; prefixes are found in any conversation."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from lmdeploy import GenerationConfig, pipeline
from lmdeploy.errors import CheckpointError
from lmdeploy.messages import TurbomindEngineConfig
from lmdeploy.offline.async_engine import AsyncEngine
from lmdeploy.turbomind.engine import Engine
from tests.support.both_engines import WITHOUT_REUSE
from tests.support.hybrid_models import MODELS, make_hybrid
from tests.support.prompts import CONVERSATIONS
from tests.support.token_engine import TokenEngine, relative_error

QUESTIONS = CONVERSATIONS[:18:3]
SAMPLED = GenerationConfig(
    max_new_tokens=80, do_sample=True, temperature=0.9, top_k=50, top_p=0.95, random_seed=5, logprobs=3, ignore_eos=True
)
BLOCK = 16
CROWDED = {"enable_prefix_caching": True, "cache_max_entry_count": 6, "max_batch_size": 8, "session_len": 256}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_hybrid(tmp_path_factory.mktemp("tiny") / "model", "Qwen3.5", max_position_embeddings=2048)


def engine(directory: Path, **settings: Any) -> AsyncEngine:
    config = {"dtype": "float32", "cache_max_entry_count": 1600, "cache_block_seq_len": BLOCK, "session_len": 1024}
    return pipeline(str(directory), backend_config=TurbomindEngineConfig(**(WITHOUT_REUSE | config | settings)))


def traces(model: AsyncEngine) -> list[Any]:
    """Return all that a batch answers, exactly."""
    return [(ids.token_ids, [list(entry.items()) for entry in ids.logprobs or []]) for ids in model(QUESTIONS, SAMPLED)]


@pytest.fixture(scope="module")
def alone(directory: Path) -> Iterator[list[Any]]:
    """Responses of each conversation by itself."""
    with engine(directory, max_batch_size=1) as model:
        yield traces(model)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_tokens_per_iter": 24, "max_batch_size": 8},
        {"enable_prefix_caching": True},
        {"enable_prefix_caching": True, "cache_max_entry_count": 16, "max_batch_size": 8, "session_len": 256},
        {
            "enable_prefix_caching": True,
            "cache_max_entry_count": 16,
            "max_batch_size": 8,
            "session_len": 256,
            "num_cpu_blocks": 200,
        },
    ],
    ids=["in a batch", "in small chunks", "with prefix hits", "crowded, mostly preempted", "with blocks of the host"],
)
def test_bits_are_the_same(directory: Path, alone: list[Any], settings: dict[str, Any]) -> None:
    with engine(directory, **settings) as model:
        assert traces(model) == alone
        assert traces(model) == alone
        if settings.get("enable_prefix_caching"):
            assert model.engine.metrics()["prefix_cache_hits_total"] > 0
        if settings.get("cache_max_entry_count") and not settings.get("num_cpu_blocks"):
            assert model.engine.metrics()["evictions_total"] > 0


PROMPT = [(37 * i * i + 11 * i) % 1900 + 100 for i in range(100)]


def computed(engine: TokenEngine, prompt: list[int], tokens: int = 1) -> tuple[int, list[int]]:
    """Return how many tokens a request computes, and its response."""
    before = engine.engine.metrics()["tokens_computed_total"]
    ids, _ = engine.generate(prompt, tokens, "generation")
    return int(engine.engine.metrics()["tokens_computed_total"] - before), ids


def test_every_prefix_that_was_computed_is_found_again(directory: Path) -> None:
    ends = [[500 + 7 * i + j for j in range(20)] for i in range(4)]
    with TokenEngine(directory, cache_max_entry_count=400, num_tokens_per_iter=64, state_snapshot_interval=0) as engine:
        _, first = computed(engine, PROMPT + ends[0], 30)
        # The next turn of the conversation: its last whole block is known.
        tokens, _ = computed(engine, PROMPT + ends[0] + first + ends[1])
        assert tokens <= 1 + len(ends[1]) + BLOCK
        # Another conversation with the same beginning: the first to part from it leaves a snapshot where it parted.
        tokens, _ = computed(engine, PROMPT + ends[2])
        assert tokens > len(PROMPT)
        tokens, _ = computed(engine, PROMPT + ends[3])
        assert tokens <= len(ends[3]) + BLOCK


def test_snapshots_at_intervals_are_found_by_the_first_that_parts(directory: Path) -> None:
    with TokenEngine(directory, cache_max_entry_count=400, state_snapshot_interval=30) as engine:
        computed(engine, [*PROMPT, 500, 501])
        tokens, _ = computed(engine, [*PROMPT, 600, 601])
        assert tokens == len(PROMPT) + 2 - 96  # 30 rounded up to whole blocks, three times


BEGIN, END, NEWLINE = 1, 2, 198  # of the tokenizer: <|im_start|>, <|im_end|>


def message(role: int, text: list[int]) -> list[int]:
    return [BEGIN, role, NEWLINE, *text, END, NEWLINE]


def test_the_first_that_parts_at_the_end_of_a_message_finds_it(directory: Path) -> None:
    system = message(690, PROMPT)
    prompts = [system + message(493, [500 + 7 * i + j for j in range(20)]) + [BEGIN, 520, NEWLINE] for i in range(3)]
    with TokenEngine(directory, cache_max_entry_count=400, state_snapshot_interval=0) as engine:
        assert computed(engine, prompts[0])[0] == len(prompts[0])
        for prompt in prompts[1:]:
            assert computed(engine, prompt)[0] <= len(prompt) - len(system) + BLOCK


def test_what_requests_share_that_come_at_once_is_computed_once(directory: Path) -> None:
    ends = [[500 + 7 * i + j for j in range(20)] for i in range(4)]
    with TokenEngine(directory, cache_max_entry_count=400, num_tokens_per_iter=48) as engine:
        expected = [computed(engine, PROMPT + end, 12)[1] for end in ends]
    # With snapshots everywhere, so that it does not matter how far the first has come when the last is submitted.
    with TokenEngine(
        directory, cache_max_entry_count=400, num_tokens_per_iter=48, state_snapshot_interval=16
    ) as engine:
        assert engine.respond([PROMPT + end for end in ends], tokens=12) == expected
        prompts = engine.engine.metrics()["tokens_computed_total"] - len(ends) * 11
        assert prompts <= len(PROMPT) + len(ends) * (20 + BLOCK)


def test_several_responses_of_one_prompt_go_their_own_ways(directory: Path) -> None:
    config = GenerationConfig(max_new_tokens=30, do_sample=True, temperature=1.0, top_k=0, random_seed=3, n=3)
    with engine(directory) as model, engine(directory, enable_prefix_caching=True) as keeping:
        expected = [response.token_ids for response in model("Once upon a time", config)]
        assert [response.token_ids for response in keeping("Once upon a time", config)] == expected
    assert len(set(map(tuple, expected))) > 1


@pytest.mark.parametrize(
    ("settings", "likeness"),
    [({"quant_policy": 8}, 0.9999), ({"quant_policy": 4}, 0.99), ({"weight_bits": 8}, 0.99), ({"weight_bits": 4}, 0.7)],
)
def test_bits_of_cache_and_weights(directory: Path, settings: dict[str, Any], likeness: float) -> None:
    with TokenEngine(directory) as exact, TokenEngine(directory, **settings) as engine:
        _, expected = exact.generate(PROMPT, 1, "all")
        _, found = engine.generate(PROMPT, 1, "all")
        assert torch.nn.functional.cosine_similarity(found, expected).median() > likeness
        assert torch.equal(engine.generate(PROMPT, 1, "generation")[1][-1], found[-1])


# The others; each has its own kind of layers.
ONE_RANK = {"OLMo Hybrid", "Mamba", "Falcon Mamba", "Jamba", "Jamba with experts"}
OTHERS = [name for name in MODELS if name not in {"Qwen3.5", "Granite 4 without Mamba"}]


@pytest.mark.alike(max_cases=4)
@pytest.mark.parametrize("name", OTHERS)
def test_every_family_keeps_its_bits_in_chunks_with_hits_and_preempted(name: str, tmp_path: Path) -> None:
    made = make_hybrid(tmp_path / "model", name)
    with engine(made, max_batch_size=1, session_len=256) as model:
        alone = traces(model)
    with engine(made, **CROWDED, num_tokens_per_iter=24) as model:
        assert traces(model) == alone
        assert traces(model) == alone
        assert model.engine.metrics()["prefix_cache_hits_total"] > 0


@pytest.mark.alike(max_cases=4)
@pytest.mark.parametrize("name", OTHERS)
def test_every_family_runs_with_few_bits(name: str, tmp_path: Path) -> None:
    made = make_hybrid(tmp_path / "model", name)
    with TokenEngine(made) as exact:
        _, expected = exact.generate(PROMPT, 1, "all")
    # Unrelated logits would have 0; where rounding lets a token go to another expert, or attend to other keys (Qwen 4's
    # are chosen by score), its row is far off.
    near = 0.95 if name.startswith("Qwen 4") else 0.98
    for settings, likeness in (({"weight_bits": 8, "quant_policy": 8}, near), ({"weight_bits": 4}, 0.5)):
        with TokenEngine(made, **settings) as model:
            _, found = model.generate(PROMPT, 1, "all")
            assert torch.nn.functional.cosine_similarity(found, expected).median() > likeness
            assert torch.equal(model.generate(PROMPT, 1, "generation")[1][-1], found[-1])


def test_bits_of_a_cache_that_a_model_does_not_have_are_ignored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = make_hybrid(tmp_path / "model", "Mamba2")
    with TokenEngine(made) as baseline, TokenEngine(made, quant_policy=4) as quantized:
        assert torch.equal(quantized.generate(PROMPT, 4, "all")[1], baseline.generate(PROMPT, 4, "all")[1])
    assert "quant_policy is ignored" in caplog.text
    assert "no attention layers" in caplog.text


@pytest.mark.alike(max_cases=5)
@pytest.mark.parametrize("name", [name for name in OTHERS if name not in ONE_RANK])
def test_heads_divide_among_ranks(name: str, tmp_path: Path) -> None:
    check_ranks(make_hybrid(tmp_path / "model", name))


def test_ranks_share_the_norm_and_the_keys_of_all_heads(tmp_path: Path) -> None:
    check_ranks(make_hybrid(tmp_path / "model", "Granite 4", mamba_n_groups=1))


def check_ranks(directory: Path) -> None:
    """Compare two ranks with one."""
    with TokenEngine(directory) as whole, TokenEngine(directory, tp=2) as divided:
        ids, expected = whole.generate(PROMPT, 8, "all")
        assert divided.generate(PROMPT, 8, "all")[0] == ids
        assert relative_error(divided.generate(PROMPT, 8, "generation")[1], expected[-8:]) < 1e-4


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        (
            "Qwen3.5",
            {"linear_num_key_heads": 3, "linear_num_value_heads": 6},
            r"recurrence\.num_key_heads 3 is neither a multiple nor a divisor of it",
        ),
        ("OLMo Hybrid", {}, r"a norm over all heads"),
        ("Jamba", {}, r"recurrence\.num_heads 1 is no multiple of it"),
        ("Mamba2", {"n_groups": 1, "num_heads": 1, "head_dim": 64}, r"recurrence\.num_heads 1 is no multiple of it"),
    ],
)
def test_ranks_that_heads_do_not_divide_by_are_refused(
    name: str, changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    directory = make_hybrid(tmp_path / "model", name, **changes)
    with pytest.raises(ValueError, match=reason):
        Engine(str(directory), TurbomindEngineConfig(tp=2, dtype="float32"))


@pytest.mark.parametrize(
    ("family", "missing"),
    [
        ("Qwen3.5", "model.layers.2.linear_attn.conv1d.weight"),
        ("Qwen3.5", "model.layers.2.linear_attn.A_log"),
        ("Granite 4", "model.layers.0.mamba.conv1d.bias"),
        ("Granite 4", "model.layers.2.mamba.D"),
        ("LFM2", "model.layers.0.conv.conv.weight"),
        ("Kimi Linear", "model.layers.2.self_attn.f_b_proj.weight"),
        ("Mamba2", "backbone.layers.1.mixer.dt_bias"),
    ],
)
def test_a_checkpoint_without_a_tensor_of_the_recurrence_is_refused_by_its_name(
    tmp_path: Path, family: str, missing: str
) -> None:
    from safetensors.torch import load_file, save_file

    directory = make_hybrid(tmp_path / "model", family)
    tensors = load_file(directory / "model.safetensors")
    tensors.pop(missing)
    save_file(tensors, directory / "model.safetensors")
    with pytest.raises(CheckpointError, match=missing.replace(".", "[.]")):
        Engine(str(directory), TurbomindEngineConfig(dtype="float32"))


def test_what_wrong_drafts_did_to_a_state_leaves_no_trace(directory: Path) -> None:
    drafting = {"method": "ngram", "num_speculative_tokens": 5, "adaptive": False}
    with TokenEngine(directory) as baseline, TokenEngine(directory, speculative_config=drafting) as engine:
        ids, _ = baseline.generate(PROMPT, 80, "generation")
        # Earlier text is drafted: rightly when the same is asked again, wrongly after some of it alone.
        for prompt in (PROMPT, PROMPT, [*PROMPT, *ids[:40], 500, *ids[:10]], [*ids[20:30], 501, *ids[20:30]]):
            expected, logits = baseline.generate(prompt, 80, "generation")
            found, found_logits = engine.generate(prompt, 80, "generation")
            assert found == expected
            assert torch.equal(found_logits, logits)
        metrics = engine.engine.metrics()
    assert metrics["draft_tokens_accepted_total"] >= 60
    assert metrics["draft_tokens_accepted_total"] < metrics["draft_tokens_total"]


def test_a_format_holds_with_and_without_drafts(directory: Path) -> None:
    schema = {
        "type": "object",
        "properties": {
            "first_name": {"enum": ["Ada", "Alan"]},
            "year_of_birth": {"type": "integer", "minimum": 0, "maximum": 99},
        },
        "required": ["first_name", "year_of_birth"],
        "additionalProperties": False,
    }
    config = GenerationConfig(
        max_new_tokens=80, response_format={"type": "json_schema", "json_schema": {"name": "person", "schema": schema}}
    )
    drafting = {"method": "ngram", "num_speculative_tokens": 5, "adaptive": False}
    with engine(directory) as baseline, engine(directory, speculative_config=drafting) as model:
        expected = [ids.token_ids for ids in baseline(QUESTIONS, config)]
        responses = model(QUESTIONS, config)
        assert model.engine.metrics()["draft_tokens_total"] > 0
    assert [ids.token_ids for ids in responses] == expected
    assert all(set(json.loads(ids.text)) == {"first_name", "year_of_birth"} for ids in responses)


def anonymous_bytes() -> int:
    """Return this process's resident memory that is no file's."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return 1024 * int(status.partition("RssAnon:")[2].split()[0])


def test_tables_of_ngrams_stay_in_the_files_and_are_read_by_row(tmp_path: Path) -> None:
    made = make_hybrid(tmp_path / "model", "Qwen 4", ngram_vocab_size_base=400_000)
    file = made / "model.safetensors"
    before = anonymous_bytes()
    with TokenEngine(made) as model:
        model.generate(PROMPT, 8)
        assert str(file) not in Path("/proc/self/maps").read_text(encoding="utf-8")
        assert anonymous_bytes() - before < file.stat().st_size / 2
        # A row that is gone is an error, not another answer.
        os.truncate(file, file.stat().st_size // 2)
        with pytest.raises(AssertionError, match="does not give a row"):
            model.generate(PROMPT[::-1], 8)


def test_a_session_longer_than_the_model_was_trained_for_goes_on_with_its_positions(tmp_path: Path) -> None:
    made = make_hybrid(tmp_path / "model", "Qwen3.5", max_position_embeddings=64)
    network = AutoModelForCausalLM.from_pretrained(made, dtype=torch.float32)
    with torch.no_grad():
        expected = network(torch.tensor([PROMPT])).logits[0]
    with TokenEngine(made, session_len=256, num_tokens_per_iter=24) as model:
        assert relative_error(model.generate(PROMPT, 1, "all")[1], expected) < 1e-4


def test_perplexity_in_chunks_is_that_of_transformers(directory: Path) -> None:
    network = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    ids = torch.tensor([PROMPT])
    with torch.no_grad():
        expected = float(network(ids, labels=ids).loss)
    with engine(directory, num_tokens_per_iter=24, max_batch_size=4) as model:
        assert model.get_ppl([PROMPT]) == pytest.approx([expected], rel=1e-4)


def test_logits_and_hidden_states_in_chunks_are_those_of_transformers(directory: Path) -> None:
    """The last token's state is the embedding of embedding models that are made of these."""
    network = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    config = GenerationConfig(max_new_tokens=1, output_logits="all", output_last_hidden_state="all")
    with engine(directory, num_tokens_per_iter=24, max_batch_size=8) as model:
        ids = model.prepare(QUESTIONS[0]).ids
        alone, batched = model([QUESTIONS[0]], config)[0], model(QUESTIONS, config)[0]
        logits = model.get_logits([ids])[0]
    assert len(ids) > 24
    with torch.no_grad():
        reference = network(torch.tensor([ids]), output_hidden_states=True)
    for native, expected in (
        (alone.logits, reference.logits[0]),
        (alone.last_hidden_state, reference.hidden_states[-1][0]),
    ):
        assert relative_error(native, expected) < 1e-4
    assert torch.equal(batched.logits, alone.logits)
    assert torch.equal(batched.last_hidden_state, alone.last_hidden_state)
    assert torch.equal(logits, alone.logits)
