"""Disk cache (`cache_dir`): a later engine answers as one that was never stopped, bit for bit."""

import json
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lmdeploy import GenerationConfig, TurbomindEngineConfig, pipeline
from lmdeploy.cli.main import main
from lmdeploy.offline.async_engine import AsyncEngine
from tests.support.adapters import make_adapter
from tests.support.hybrid_models import make_hybrid
from tests.support.prompts import CONVERSATIONS
from tests.support.tiny_models import make_tiny, make_tiny_llama
from tests.support.waiting import eventually_sync

SAMPLED = GenerationConfig(
    max_new_tokens=40, do_sample=True, temperature=0.9, top_k=50, top_p=0.95, random_seed=5, logprobs=3, ignore_eos=True
)
QUESTIONS = CONVERSATIONS[16:20]


def llama(directory: Path) -> Path:
    return make_tiny_llama(directory, hidden_size=48, max_position_embeddings=2048)


def windows(directory: Path) -> Path:
    return make_tiny(
        directory, "Gemma3ForCausalLM", num_hidden_layers=4, sliding_window=40, head_dim=16,
        max_position_embeddings=2048,
        layer_types=["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"],
    )  # fmt: skip


def states(directory: Path) -> Path:
    return make_hybrid(directory, "Qwen3.5", max_position_embeddings=2048)


def config(**more: Any) -> TurbomindEngineConfig:
    return TurbomindEngineConfig(**({
        "dtype": "float32", "cache_max_entry_count": 400, "cache_block_seq_len": 16, "session_len": 1024,
        "max_batch_size": 8, "enable_prefix_caching": True,
    } | more))  # fmt: skip


def turns(model: AsyncEngine) -> list[Any]:
    """Return the exact responses of conversations in two turns, with their cached prefixes."""
    answers = []
    for messages in QUESTIONS:
        first = model(messages, SAMPLED)
        answers.append(first)
        second = [
            *messages,
            {"role": "assistant", "content": first.text},
            {"role": "user", "content": "Why is that so?"},
        ]
        answers.append(model(second, SAMPLED))
    return [(response.token_ids, [list(entry.items()) for entry in response.logprobs or []]) for response in answers]


@pytest.mark.parametrize(
    ("make", "settings"),
    [(llama, {}), (llama, {"quant_policy": 8}), (llama, {"tp": 2}), (windows, {}), (states, {})],
    ids=["llama", "8 bits", "ranks", "windows", "states"],
)
def test_an_engine_that_starts_again_answers_with_the_same_bits(
    tmp_path: Path, make: Callable[[Path], Path], settings: dict[str, Any]
) -> None:
    model_path = str(make(tmp_path / "model"))
    with pipeline(model_path, backend_config=config(**settings)) as model:
        expected = turns(model)
    kept = config(cache_dir=str(tmp_path / "cache"), **settings)
    with pipeline(model_path, backend_config=kept) as model:
        assert turns(model) == expected
        hits = model.engine.metrics()["prefix_cache_hits_total"]
    with pipeline(model_path, backend_config=kept) as model:
        assert turns(model) == expected
        metrics = model.engine.metrics()
    assert metrics["disk_blocks_read_total"] > 0
    assert metrics["disk_damaged_total"] == metrics["disk_failures_total"] == 0
    # Both turns of a conversation are found now, where only the second one found the first.
    assert metrics["prefix_cache_hits_total"] > 1.5 * hits
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700


def test_files_of_other_weights_and_settings_are_not_used(tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")
    one, other = (
        llama(tmp_path / "one"),
        make_tiny_llama(tmp_path / "other", hidden_size=48, max_position_embeddings=2048, seed=1),
    )
    for path, settings in ((one, {}), (other, {}), (one, {"quant_policy": 8}), (one, {"rope_scaling_factor": 2.0})):
        with pipeline(str(path), backend_config=config(cache_dir=cache, **settings)) as model:
            model(QUESTIONS[2], SAMPLED)
            assert model.engine.metrics()["disk_blocks_read_total"] == 0
    renamed = one.rename(tmp_path / "renamed")
    with pipeline(str(renamed), backend_config=config(cache_dir=cache)) as model:
        model(QUESTIONS[2], SAMPLED)
        assert model.engine.metrics()["disk_blocks_read_total"] > 0


KILLED = """
import json, sys
from lmdeploy import GenerationConfig, TurbomindEngineConfig, pipeline
settings, prompts = json.loads(sys.argv[2]), json.loads(sys.argv[3])
with pipeline(sys.argv[1], backend_config=TurbomindEngineConfig(**settings)) as model:
    for prompt in prompts:
        model(prompt, GenerationConfig(max_new_tokens=20, top_k=1, ignore_eos=True), do_preprocess=False)
        print("answered", flush=True)
"""


def test_a_process_that_is_killed_leaves_nothing_that_is_wrong(tmp_path: Path) -> None:
    model_path = llama(tmp_path / "model")
    settings = {
        "dtype": "float32", "cache_max_entry_count": 400, "cache_block_seq_len": 16, "session_len": 1024,
        "enable_prefix_caching": True, "cache_dir": str(tmp_path / "cache"), "threads": 1,
    }  # fmt: skip
    choose = random.Random(3)
    beginning = " ".join(choose.choices(["river", "stone", "cloud", "seven", "green"], k=150))
    prompts = [f"{beginning} {number} {beginning}" for number in range(12)]
    for kills in range(2):
        # Killed while it writes what the last answers left.
        with subprocess.Popen(
            [sys.executable, "-c", KILLED, str(model_path), json.dumps(settings), json.dumps(prompts)],
            stdout=subprocess.PIPE, text=True,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            for _ in range(3 + 5 * kills):
                assert process.stdout.readline() == "answered\n"
            eventually_sync(lambda: any((tmp_path / "cache").glob("*.kv")))
            process.send_signal(signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL
    greedy = GenerationConfig(max_new_tokens=20, top_k=1, ignore_eos=True, logprobs=3)

    def answers(**more: Any) -> tuple[list[Any], dict[str, float]]:
        with pipeline(str(model_path), backend_config=config(**more)) as model:
            given = [model(prompt, greedy, do_preprocess=False) for prompt in prompts]
            return [(response.token_ids, response.logprobs) for response in given], model.engine.metrics()

    expected, _ = answers()
    found, metrics = answers(cache_dir=settings["cache_dir"])
    assert found == expected
    assert metrics["disk_blocks_read_total"] > 0
    assert metrics["disk_damaged_total"] == 0


def error_of(model_path: Path, **settings: Any) -> str:
    with pytest.raises(ValueError, match="cache_dir") as caught:
        pipeline(str(model_path), backend_config=config(**settings))
    return str(caught.value)


def test_a_directory_that_cannot_be_used_is_said_at_start(tmp_path: Path) -> None:
    model_path = llama(tmp_path / "model")
    cache = tmp_path / "cache"
    assert "needs enable_prefix_caching" in error_of(model_path, cache_dir=str(cache), enable_prefix_caching=False)
    assert "cache_dir_bytes must be at least" in error_of(model_path, cache_dir=str(cache), cache_dir_bytes=100)
    cache.mkdir(mode=0o755, exist_ok=True)
    cache.chmod(0o755)
    assert f"run: chmod 700 {cache}" in error_of(model_path, cache_dir=str(cache))
    (tmp_path / "file").write_text("")
    assert "cannot be opened: Not a directory" in error_of(model_path, cache_dir=str(tmp_path / "file"))


def test_prompts_that_were_warmed_are_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model_path = llama(tmp_path / "model")
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(
        json.dumps({"messages": QUESTIONS[2]}) + "\n\n" + json.dumps({"prompt": "seven rivers " * 40}) + "\n"
    )
    options = ["--cache-dir", str(tmp_path / "cache"), "--dtype", "float32", "--cache-block-seq-len", "16"]
    assert main(["warm", str(prompts), str(model_path), *options]) == 0
    assert f"prompts kept in {tmp_path}/cache: 2" in capsys.readouterr().err
    with pipeline(str(model_path), backend_config=config(cache_dir=str(tmp_path / "cache"))) as model:
        model(QUESTIONS[2], SAMPLED)
        model("seven rivers " * 40, SAMPLED, do_preprocess=False)
        metrics = model.engine.metrics()
    tokens = metrics["tokens_in_total"]
    assert tokens - 2 * 16 <= metrics["prefix_cache_hits_total"] < tokens
    prompts.write_text('{"messages": []}\n{"text": "no prompt"}\n')
    assert main(["warm", str(prompts), str(model_path), *options]) == 1
    assert "line 2: expected" in capsys.readouterr().err
    assert main(["warm", str(prompts), str(model_path)]) == 1
    assert "--cache-dir is missing" in capsys.readouterr().err


def found_on_disk(model_path: Path, cache: Path, adapter: Path | None, name: str = "a") -> list[Any]:
    """Return the exact responses of a new engine, with the blocks that it read."""
    settings = {"cache_dir": str(cache), "adapters": {name: str(adapter)} if adapter else None}
    with pipeline(str(model_path), backend_config=config(**settings)) as model:
        options = GenerationConfig(max_new_tokens=12, top_k=1, ignore_eos=True, logprobs=2)
        answer = model(QUESTIONS[2], options, adapter_name=name if adapter else None)
        return [answer.token_ids, answer.logprobs, model.engine.metrics()["disk_blocks_read_total"]]


def test_an_adapter_is_known_by_its_numbers_and_not_by_its_name(tmp_path: Path) -> None:
    base = llama(tmp_path / "model")
    one, other = (make_adapter(tmp_path / f"{seed}", base, seed=seed) for seed in (1, 2))
    scaled = make_adapter(tmp_path / "scaled", base, seed=1, alpha=9.0)
    fresh = [found_on_disk(base, tmp_path / f"fresh-{model.name}", model)[:2] for model in (one, other, scaled)]
    cache = tmp_path / "cache"
    *first, read = found_on_disk(base, cache, one)
    assert (first, read) == (fresh[0], 0)
    # Under the same name, what others add is another's; under another name, the same is the same.
    for adapter, expected in ((other, fresh[1]), (scaled, fresh[2])):
        *answer, read = found_on_disk(base, cache, adapter)
        assert (answer, read) == (expected, 0)
    assert found_on_disk(base, cache, None)[2] == 0
    *answer, read = found_on_disk(base, cache, one.rename(tmp_path / "moved"), name="b")
    assert answer == fresh[0]
    assert read > 0
