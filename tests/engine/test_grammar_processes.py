"""Response formats are read in processes of their own: what one of them costs, nobody else pays."""

import contextlib
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Set
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from lmdeploy import GenerationConfig, TurbomindEngineConfig, pipeline
from lmdeploy.offline.async_engine import AsyncEngine
from tests.support.tiny_models import make_tiny_llama

UNCONSTRAINED = GenerationConfig(max_new_tokens=24, min_new_tokens=24, random_seed=1)
# A grammar of nested repetitions, whose masks take longest.
HOSTILE = r"(\w+\s?){1,200}"
DEADLINE_S = 180


def as_format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "test", "schema": schema}}


# A response under it does not end.
ENDLESS = {"type": "grammar", "grammar": 'root ::= a "\\x01"\na ::= a [a-z] | [a-z]'}
# It takes long to read.
MANY_RANGES = as_format(
    {
        "type": "array",
        "prefixItems": [{"type": "integer", "minimum": i * 1_000_003, "maximum": i * 999_999_999} for i in range(900)],
    }
)
HONEST = as_format({"type": "array", "items": {"type": "string", "maxLength": 6}, "minItems": 2, "maxItems": 2})


def processes(others: Set[int] = frozenset()) -> list[int]:
    """Return the processes that read formats and that this one has started, but `others`."""
    found = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended
            if child.name().startswith("turbomind_gramm") and child.status() != psutil.STATUS_ZOMBIE:
                found.append(child.pid)
    return [pid for pid in found if pid not in others]


def wait_until(holds: Any) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.01)


def load(directory: Path, **settings: Any) -> AsyncEngine:
    return pipeline(str(directory), backend_config=TurbomindEngineConfig(cache_max_entry_count=512, **settings))


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("tiny") / "model", max_position_embeddings=2048)


@pytest.fixture
def others() -> Set[int]:
    """Processes of engines that other tests have left to the garbage collector."""
    return frozenset(processes())


@pytest.fixture
def model(model_dir: Path, others: Set[int]) -> Iterator[AsyncEngine]:
    with load(model_dir) as loaded:
        yield loaded


def structured(response_format: dict[str, Any], **changes: Any) -> GenerationConfig:
    return GenerationConfig(
        **{"max_new_tokens": 200, "do_sample": True, "top_k": 0, "random_seed": 3, **changes},
        response_format=response_format,
    )


def test_tokens_are_the_same_alone_in_a_batch_and_whatever_is_remembered(model: AsyncEngine) -> None:
    configs = [structured(HONEST, random_seed=seed) for seed in range(8)]
    prompts = [f"prompt {seed}" for seed in range(8)]
    alone = [
        model(prompt, config, do_preprocess=False).token_ids for prompt, config in zip(prompts, configs, strict=True)
    ]
    together = [response.token_ids for response in model(prompts, configs, do_preprocess=False)]
    again = [response.token_ids for response in model(prompts, configs, do_preprocess=False)]
    assert alone == together == again
    assert len({tuple(tokens) for tokens in alone}) > 1


def test_what_takes_too_long_to_compile_is_refused_by_its_sum_and_then_at_once(
    model_dir: Path, others: Set[int]
) -> None:
    with load(model_dir, grammar_compile_seconds=0.2) as model:
        expected = model("Hello", UNCONSTRAINED, do_preprocess=False).token_ids
        with pytest.raises(ValueError, match=r"more than grammar_compile_seconds, 0\.2 s"):
            model("Hello", structured(MANY_RANGES), do_preprocess=False)
        assert processes(others) == []  # it has ended
        with pytest.raises(ValueError, match=r"more than grammar_compile_seconds, 0\.2 s"):
            model("Hello", structured(MANY_RANGES), do_preprocess=False)
        assert processes(others) == []  # nothing was begun
        assert model("Hello", UNCONSTRAINED, do_preprocess=False).token_ids == expected


def test_honest_responses_end_alongside_hostile_ones_and_are_what_they_are_alone(model: AsyncEngine) -> None:
    expected_text = model("Hello", UNCONSTRAINED, do_preprocess=False).token_ids
    expected_structured = model("Hello", structured(HONEST), do_preprocess=False).token_ids
    outcomes: list[str] = []

    def generate(number: int) -> None:
        name = f"([ab]{{{number + 1}}})?"  # its own grammar
        regex = name + HOSTILE
        tag = {"type": "structural_tag", "structural_tag": {"type": "regex", "pattern": regex}}
        whole = {"type": "regex_schema", "regex_schema": regex}
        config = structured(tag if number % 2 else whole, max_new_tokens=40)
        try:
            outcomes.append(model("Hello", config, do_preprocess=False).finish_reason or "")
        except ValueError as error:
            outcomes.append(str(error))

    hostile = [threading.Thread(target=generate, args=(number,)) for number in range(6)]
    for thread in hostile:
        thread.start()
    for _ in range(5):
        assert model("Hello", UNCONSTRAINED, do_preprocess=False).token_ids == expected_text
        assert model("Hello", structured(HONEST), do_preprocess=False).token_ids == expected_structured
    for thread in hostile:
        thread.join(timeout=DEADLINE_S * 2)
        assert not thread.is_alive()
    assert len(outcomes) == 6
    assert all(outcome in ("stop", "length") or "response_format: " in outcome for outcome in outcomes), outcomes
    wait_until(lambda: model.engine.metrics()["cache_blocks_used"] == 0)


def kill(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_a_killed_process_ends_what_waits_for_it_with_a_reason_and_is_replaced(
    model: AsyncEngine, others: Set[int]
) -> None:
    expected = model("Hello", structured(HONEST), do_preprocess=False).token_ids
    endless = structured(ENDLESS, max_new_tokens=100)
    stream = model.stream_infer("Hello", endless, do_preprocess=False)
    next(iter(stream))
    kill(processes(others))  # idle ones: nobody waits for them any more
    assert list(stream)[-1].finish_reason == "length"
    assert model("Hello", structured(HONEST), do_preprocess=False).token_ids == expected
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(model, "Hello", structured(MANY_RANGES), do_preprocess=False)

        def is_over() -> bool:  # one that was killed before it had the format is replaced
            kill(processes(others))
            return reading.done()

        wait_until(is_over)
        with pytest.raises((ValueError, RuntimeError), match="the process that reads the response format ended"):
            reading.result(DEADLINE_S)
    again = as_format({"type": "array", "items": {"const": "7"}, "minItems": 2, "maxItems": 2})
    assert model("Hello", structured(again), do_preprocess=False).text == '["7", "7"]'


def test_closing_while_a_format_is_read_leaves_no_process_and_no_descriptor(model_dir: Path, others: Set[int]) -> None:
    load(model_dir).close()
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    model = load(model_dir)
    stream = model.stream_infer("Hello", structured(ENDLESS, max_new_tokens=1500), do_preprocess=False)
    next(iter(stream))
    slow = threading.Thread(target=swallow, args=(model, "Hello", structured(MANY_RANGES)))
    slow.start()
    wait_until(lambda: processes(others))
    model.close()
    slow.join(timeout=DEADLINE_S)
    assert not slow.is_alive()
    swallow(list, stream)
    del model, stream
    assert processes(others) == []
    assert len(list(Path("/proc/self/fd").iterdir())) <= descriptors


def swallow(use: Callable[..., object], *given: object) -> None:
    with contextlib.suppress(ValueError, RuntimeError):
        use(*given)


@pytest.mark.parametrize(
    ("response_format", "text"),
    [
        ({"type": "grammar", "grammar": 'root ::= "[" (("a" {1,1000}) {1,1000}){1,1000} "]"'}, r"\[a+\]?"),
        (
            {
                "type": "structural_tag",
                "structural_tag": {"type": "regex", "pattern": "((a{1,1000}){1,1000}b?){1,1000}"},
            },
            "[ab]+",
        ),
        (as_format({"type": "string", "minLength": 10**5}), '".*'),
    ],
    ids=["grammar", "expression", "length"],
)
def test_repetitions_of_repetitions_cost_no_more_however_many_characters_they_stand_for(
    model: AsyncEngine, response_format: dict[str, Any], text: str
) -> None:
    response = model("Hello", structured(response_format, max_new_tokens=100), do_preprocess=False)
    assert re.fullmatch(text, response.text, re.DOTALL), response.text
