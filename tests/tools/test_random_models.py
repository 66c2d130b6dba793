"""Checkpoints of random weights, what steps of their shapes cost, and the crowd that is measured with them."""

import json
from pathlib import Path
from statistics import mean

import numpy as np
import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from tools.bench.random_model import write as write_apart
from tools.bench.shapes import SHAPES, tiny
from tools.gpu_check.checkpoints import tensors, write
from tools.gpu_check.cost import Cost, Limits, cost_of, least_seconds
from tools.gpu_check.work.throughput import lengths


def test_a_random_model_is_a_checkpoint_that_transformers_reads(tmp_path: Path) -> None:
    directory = write_apart("tiny", tmp_path / "tiny")
    model, report = AutoModelForCausalLM.from_pretrained(directory, output_loading_info=True)
    assert not any(report[what] for what in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    wanted = SHAPES["tiny"].config
    assert {name: getattr(model.config, name) for name in wanted} == wanted
    text = "Größe, 大小"
    tokenizer = AutoTokenizer.from_pretrained(directory)
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert tokenizer.apply_chat_template(said, tokenize=False) == "a\nb\n"
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


def test_a_step_costs_what_it_reads_and_multiplies() -> None:
    cost = cost_of(SHAPES["llama-8b"])
    embedding = 128256 * 4096
    norms = 65 * 4096
    assert cost.dense_bytes == 2 * (8_030_261_248 - embedding)
    assert cost.row_operations + cost.head_operations == 2.0 * (8_030_261_248 - embedding - norms)
    assert cost.cache_bytes == 2 * 32 * 8 * 128 * 2
    assert cost_of(SHAPES["deepseek"]).cache_bytes == 12 * 576 * 2
    packed = cost_of(SHAPES["awq-8b"])
    assert packed.row_operations == cost.row_operations
    layers = 8_030_261_248 - 2 * embedding - norms
    assert packed.dense_bytes == pytest.approx(2 * embedding + layers * (0.5 + 2.5 / 128), rel=1e-3)


def test_steps_read_the_experts_that_their_rows_are_likely_to_take() -> None:
    cost = cost_of(SHAPES["mixtral"])
    one = cost.weight_bytes(1) - cost.dense_bytes
    assert one == pytest.approx(cost.expert_bytes * 2 / 8)
    assert cost.weight_bytes(1000) == pytest.approx(cost.dense_bytes + cost.expert_bytes)


def test_the_least_time_of_a_crowd_is_the_sum_of_its_steps() -> None:
    # A second a byte and an operation: weights of 10 bytes, a byte a cached token, 4 operations a row, 1 more sampled.
    cost = Cost(10, 0, 0, 0, 1, 4.0, 1.0, 0.0)
    limits = Limits(1.0, 1.0)
    # One prompt of 3 and two tokens: 3 rows, 13 operations; then one row after 3 tokens, 13 bytes.
    assert least_seconds(cost, limits, [(3, 2)], 1, 100) == 13 + 13
    # Steps of two tokens: the prompt takes two of them, at least 10 bytes each.
    assert least_seconds(cost, limits, [(3, 2)], 1, 2) == 10 + 10 + 13
    # Two at a time: 6 rows and 2 sampled are 26 operations; two rows after 3 tokens each read 16 bytes.
    assert least_seconds(cost, limits, [(3, 2), (3, 2)], 2, 100) == 26 + 16


def test_the_crowd_has_the_lengths_of_conversations() -> None:
    found = lengths(1000)
    assert found == lengths(1000)
    assert 180 < mean(prompt for prompt, _ in found) < 260
    assert 160 < mean(response for _, response in found) < 240
