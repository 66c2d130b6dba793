"""Many requests, a third cancelled, a tenth malformed: nothing leaks, nothing stalls, the rest is right."""

import os
import random
import threading
from pathlib import Path
from typing import Any

import pytest

from lmdeploy import GenerationConfig
from lmdeploy.turbomind.engine import Engine, EngineOutput, SessionOptions
from tests.support.both_engines import config_for
from tests.support.processes import children
from tests.support.tiny_models import make_tiny_llama
from tests.support.waiting import eventually_sync

OPEN_AT_ONCE = 64


def resident_bytes() -> int:
    """Return the memory of this process and its children, workers of the PyTorch engine among them."""
    pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in (os.getpid(), *children(os.getpid()))]
    return sum(pages) * os.sysconf("SC_PAGE_SIZE")


class Traffic:
    """Submits requests with a bounded number open, and keeps what each answered."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.room = threading.Semaphore(OPEN_AT_ONCE)
        self.responses: dict[int, list[int]] = {}
        self.ends: dict[int, str] = {}

    def take(self, output: EngineOutput) -> None:
        self.responses.setdefault(output.request, []).extend(output.token_ids)
        if output.is_final:
            self.ends[output.request] = output.finish_reason
            self.room.release()

    def submit(self, prompt: list[int], config: GenerationConfig, session: SessionOptions | None = None) -> int | None:
        assert self.room.acquire(timeout=60), "the engine stalls"
        try:
            return self.engine.submit(prompt, config, self.take, session=session)
        except ValueError:
            self.room.release()
            return None


def run_traffic(engine: Engine, seed: int, requests: int) -> None:
    chance = random.Random(seed)
    traffic = Traffic(engine)
    greedy: dict[int, tuple[tuple[int, ...], int]] = {}
    prompts = [[10 + chance.randrange(10, 40000) % 1990 for _ in range(chance.randint(1, 60))] for _ in range(40)]
    sent, rejected = 0, 0
    for _ in range(requests):
        prompt = chance.choice(prompts)
        count = chance.randint(1, 24)
        kind = chance.random()
        if kind < 0.1:
            malformed: tuple[list[int], dict[str, Any]] = chance.choice(
                [
                    ([], {}),
                    ([10**6], {}),
                    (prompt * 130, {}),
                    (prompt, {"stop_token_ids": [10**7]}),
                    (prompt, {"logit_bias": {10**7: 1.0}}),
                ]
            )
            assert traffic.submit(malformed[0], GenerationConfig(max_new_tokens=count, **malformed[1])) is None
            rejected += 1
            continue
        session = SessionOptions(chance.randrange(10**6), start=True, end=True) if kind < 0.3 else None
        config = GenerationConfig(max_new_tokens=count, ignore_eos=True)
        number = traffic.submit(prompt, config, session)
        assert number is not None
        sent += 1
        if chance.random() < 1 / 3:
            engine.cancel(number)
        else:
            greedy[number] = (tuple(prompt), count)
    eventually_sync(lambda: len(traffic.ends) == sent)
    assert rejected > requests * 0.05
    by_prompt: dict[tuple[int, ...], list[int]] = {}
    for number, (key, count) in greedy.items():
        if traffic.ends[number] == "error":  # two requests met in one session
            continue
        assert traffic.ends[number] == "length"
        response = traffic.responses[number]
        assert len(response) == count
        longest = by_prompt.setdefault(key, response)
        shared = min(len(longest), len(response))
        assert response[:shared] == longest[:shared]  # greedy: equal prompts begin equally, whatever else ran
        if len(response) > len(longest):
            by_prompt[key] = response


@pytest.mark.usefixtures("installed_workers")  # their memory counts
@pytest.mark.parametrize(("backend", "requests"), [("turbomind", 2000), ("pytorch", 500)])
def test_thousands_of_requests_leave_nothing_behind(tmp_path: Path, backend: str, requests: int) -> None:
    directory = make_tiny_llama(tmp_path / "model")
    config = config_for(
        backend,
        dtype="float32",
        session_len=128,
        cache_max_entry_count=24,
        cache_block_seq_len=16,
        enable_prefix_caching=True,
    )
    engine = Engine(str(directory), config)
    try:
        run_traffic(engine, 1, requests // 5)  # warms allocator and caches
        before_bytes, before_threads = resident_bytes(), threading.active_count()
        run_traffic(engine, 2, requests)
        measurements = engine.metrics()
        assert measurements["cache_blocks_used"] == 0
        assert measurements["requests_running"] + measurements["requests_waiting"] == 0
        assert measurements["sessions"] == 0
        assert measurements["preemptions_total"] > 0
        assert threading.active_count() <= before_threads  # some of other tests may have ended
        assert resident_bytes() - before_bytes < 64 << 20
    finally:
        engine.close()
