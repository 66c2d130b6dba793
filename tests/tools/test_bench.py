"""The numbers that the profile tools report, and checkpoints of random weights that they measure."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from statistics import mean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from lmdeploy.capacity.sizes import Sizes
from tools.bench.checkpoints import tensors, write
from tools.bench.random_model import write as write_random
from tools.bench.roofline import ModelCost
from tools.bench.shapes import SHAPES, tiny
from tools.bench.stats import Record, percentile, summarize
from tools.bench.workload import Lengths, dataset_requests, random_requests
from tools.gpu_check.work.crowd import lengths, min_time

times = st.floats(min_value=0, max_value=1e6)


@given(st.lists(times, min_size=2))
def test_percentiles_are_those_of_the_standard_library(values: list[float]) -> None:
    expected = statistics.quantiles(values, n=100, method="inclusive")
    for percent in (50, 75, 95, 99):
        assert percentile(values, percent) == pytest.approx(expected[percent - 1])


def test_percentile_of_nothing_is_no_number() -> None:
    assert math.isnan(percentile([], 50))


def test_latencies_count_every_token_of_a_response() -> None:
    record = Record(started=1.0, arrivals=[(1.5, 1), (1.7, 2), (1.8, 1)])
    assert record.output_len == 4
    assert record.first_token_latency == pytest.approx(0.5)
    assert record.token_latencies() == pytest.approx([0.1, 0.1, 0.1])


def test_summary_divides_by_total_time() -> None:
    records = [Record(0.0, [(1.0, 1), (2.0, 1)], input_len=5), Record(0.0, [(3.0, 1), (4.0, 1)], input_len=7)]
    summary = summarize(records, seconds=4.0)
    assert (summary.input_tokens, summary.output_tokens) == (12, 4)
    assert summary.token_throughput == 1.0
    assert summary.requests_per_minute == 30.0
    assert summary.first_token_latency["mean"] == 2.0
    assert summary.token_latency["p99"] == 1.0


def test_same_seed_gives_the_same_requests() -> None:
    bounds = Lengths(2, 9), Lengths(1, 4)
    requests = random_requests(50, *bounds, seed=3)
    assert requests == random_requests(50, *bounds, seed=3)
    assert requests != random_requests(50, *bounds, seed=4)
    assert {len(request.prompt.split()) for request in requests} == set(range(2, 10))
    assert {request.output_len for request in requests} == set(range(1, 5))


@pytest.mark.parametrize("text", ["0", "5:4", "x", ":3", "-1:2"])
def test_bad_lengths_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        Lengths.parse(text)


def test_dataset_gives_first_questions(tmp_path: Path) -> None:
    path = tmp_path / "sharegpt.json"
    turns = [{"from": "human", "value": "Why?"}, {"from": "gpt", "value": "Because."}]
    path.write_text(json.dumps([{"conversations": turns}, {"conversations": turns[1:]}]), encoding="utf-8")
    assert [request.prompt for request in dataset_requests(path, 1, Lengths(1, 1), seed=0)] == ["Why?"]
    with pytest.raises(ValueError, match="1 usable conversations, expected at least 2"):
        dataset_requests(path, 2, Lengths(1, 1), seed=0)


def test_a_random_model_is_a_checkpoint_that_transformers_reads(tmp_path: Path) -> None:
    directory = write_random("tiny", tmp_path / "tiny")
    model, report = AutoModelForCausalLM.from_pretrained(directory, output_loading_info=True)
    assert not any(report[what] for what in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    expected = SHAPES["tiny"].config
    assert {name: getattr(model.config, name) for name in expected} == expected
    text = "Größe, 大小"
    tokenizer = AutoTokenizer.from_pretrained(directory)
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert tokenizer.apply_chat_template(messages, tokenize=False) == "a\nb\n"
    assert GenerationConfig.from_pretrained(directory).eos_token_id == 257


@pytest.mark.parametrize(
    ("name", "layers", "parameters"),
    [
        ("llama-8b", 32, 8_030_261_248),  # Llama 3.1 8B
        ("mixtral", 32, 46_702_792_704),  # Mixtral 8x7B
        ("qwen3-moe", 48, 30_532_122_624),  # Qwen3 30B A3B
        ("deepseek", 27, 15_706_484_224),  # DeepSeek-V2-Lite
    ],
)
def test_with_all_layers_a_shape_has_as_many_parameters_as_its_original(
    name: str, layers: int, parameters: int
) -> None:
    whole = SHAPES[name].having(num_hidden_layers=layers)
    assert sum(int(np.prod(tensor.shape)) for tensor in tensors(whole)) == parameters


@pytest.mark.parametrize("name", ["llama-8b", "awq-8b", "fp8-8b"])
def test_tensors_that_lie_over_each_other_are_finite_numbers_of_a_usual_size(name: str, tmp_path: Path) -> None:
    shape = tiny(SHAPES[name])
    write(shape, tmp_path)
    data = (tmp_path / "model.safetensors").read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:begin])
    assert set(header) == {tensor.name for tensor in tensors(shape)}

    def values(entry: dict[str, object]) -> np.ndarray:
        first, last = entry["data_offsets"]  # type: ignore[misc]
        raw = np.frombuffer(data[begin + first : begin + last], np.uint8)
        if entry["dtype"] == "BF16":
            return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        return raw.view(np.float16 if entry["dtype"] == "F16" else np.float32)

    for tensor, entry in header.items():
        if entry["dtype"] == "F8_E4M3":
            first, last = entry["data_offsets"]
            assert not set(data[begin + first : begin + last]) & {0x7F, 0xFF}
        elif entry["dtype"] != "I32":
            found = np.abs(values(entry))
            assert np.isfinite(found).all()
            low, high = (0.9, 1.1) if "norm" in tensor else (1e-5, 0.01) if "scale" in tensor else (0.01, 0.03)
            assert low < found.mean() < high, tensor


@pytest.mark.parametrize("name", ["llama-8b", "mixtral", "qwen3-moe", "deepseek"])
def test_a_step_multiplies_with_the_matrices_of_the_checkpoint(name: str) -> None:
    shape = SHAPES[name]
    sizes = Sizes.of_config(shape.config)
    elements = {
        role: sum(int(np.prod(tensor.shape)) for tensor in tensors(shape) if tensor.role == role)
        for role in ("matrix", "expert")
    }
    assert sizes.dense + sizes.output == elements["matrix"]
    assert sizes.experts * sizes.expert == elements["expert"]


def test_a_step_reads_weights_of_every_format_and_the_cache() -> None:
    sizes = Sizes.of_config(SHAPES["llama-8b"].config)
    bits = {"llama-8b": 16, "awq-8b": 4 + 20 / 128, "fp8-8b": 8}
    for name, count in bits.items():
        cost = ModelCost.of(sizes, SHAPES[name].weight_bytes, 2, 2)
        assert cost.weight_bytes() == pytest.approx(sizes.dense * count / 8 + 128256 * 4096 * 2)
        assert cost.cache_bytes == 2 * 32 * 8 * 128 * 2


def test_steps_read_the_experts_that_their_rows_are_likely_to_take() -> None:
    cost = ModelCost.of(Sizes.of_config(SHAPES["mixtral"].config), 2, 2, 2)
    always = cost.dense_bytes + cost.output_bytes
    assert cost.weight_bytes(1) == pytest.approx(always + cost.expert_bytes * 2 / 8)
    assert cost.weight_bytes(1000) == pytest.approx(always + cost.expert_bytes)


def test_the_least_time_of_a_crowd_is_the_sum_of_what_bounds_each_operator() -> None:
    # A second a byte and an operation. Layers: 10 bytes, 2 operations a row. Output: 4 bytes, 2 operations a sampled
    # row. Attention: a byte a cached token, 2 operations a pair.
    numbers = {"dense": 1, "expert": 0, "experts": 0, "experts_per_token": 0, "cached": 1, "attention": 1}
    cost = ModelCost(Sizes(embedding=1, output=1, is_tied=False, **numbers), 10, 4, cache_bytes=1)
    limits = (1.0, 1.0)
    # One prompt of 6: 12 for its rows, 4 for the output, 36 for 18 pairs; what it decodes is not waited for.
    assert min_time(cost, limits, [(6, 2)], 1, 100) == 12 + 4 + 36
    # Steps of 3 tokens: nothing sampled in the first one, whose output layer's weights are read all the same.
    assert min_time(cost, limits, [(6, 2)], 1, 3) == (10 + 4 + 9) + (10 + 4 + 27)
    # One at a time: the second begins when the first has decoded, a row of 6 cached tokens.
    assert min_time(cost, limits, [(6, 2), (6, 2)], 1, 100) == 2 * 52 + (10 + 4 + 12)


def test_the_crowd_has_the_lengths_of_conversations() -> None:
    found = lengths(1000)
    assert found == lengths(1000)
    assert 180 < mean(prompt for prompt, _ in found) < 260
    assert 160 < mean(response for _, response in found) < 240
