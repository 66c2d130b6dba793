"""Where a router sends requests that begin like earlier ones."""

import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lmdeploy.serve.affinity import PIECE, SLACK, Affinity, prefix_keys, session_key
from openai_gateway.proxy.prompt import ForwardedBody, Prompt

IDLE = {"a": 0, "b": 0, "c": 0}


def preferred(
    affinity: Affinity[Any], keys: tuple[int, ...], session: int | None, loads: dict[Any, int]
) -> tuple[Any, int]:
    return affinity.preferred(keys, session, loads, min(loads.values()))


@given(st.binary(max_size=6 * PIECE), st.binary(max_size=6 * PIECE))
def test_two_prompts_share_as_many_keys_as_whole_pieces(one: bytes, other: bytes) -> None:
    shared = next((at for at, (x, y) in enumerate(zip(one, other, strict=False)) if x != y), min(len(one), len(other)))
    first, second = prefix_keys(one), prefix_keys(other)
    assert len(first) == len(one) // PIECE
    assert sum(x == y for x, y in zip(first, second, strict=False)) == shared // PIECE


def test_prompts_for_different_models_share_nothing() -> None:
    prompt = b"x" * 4 * PIECE
    assert not set(prefix_keys(prompt, "base")) & set(prefix_keys(prompt, "adapter"))


def test_the_holder_of_the_longest_prefix_is_preferred() -> None:
    affinity: Affinity[str] = Affinity()
    document, question = b"d" * 2 * PIECE, b"q" * PIECE
    affinity.sent(prefix_keys(document), None, "a")
    affinity.sent(prefix_keys(document + question), None, "b")
    assert preferred(affinity, prefix_keys(document + question + b"!"), None, IDLE) == ("b", 3)
    assert preferred(affinity, prefix_keys(document + b"z" * PIECE), None, {**IDLE, "b": 1}) == ("a", 2)
    assert preferred(affinity, prefix_keys(b"z" * 5 * PIECE), None, IDLE) == (None, 0)


def test_a_busy_holder_is_passed_over_and_one_that_is_gone_is_forgotten() -> None:
    affinity: Affinity[str] = Affinity()
    keys = prefix_keys(b"d" * 2 * PIECE)
    affinity.sent(keys, None, "a")
    assert preferred(affinity, keys, None, {**IDLE, "a": SLACK}) == ("a", 2)
    assert preferred(affinity, keys, None, {**IDLE, "a": SLACK + 1}) == (None, 0)
    assert preferred(affinity, keys, None, {"b": 0, "c": 0}) == (None, 0)


def test_a_session_stays_however_busy_its_replica_is_and_moves_when_that_is_gone() -> None:
    affinity: Affinity[str] = Affinity()
    session = session_key("7")
    affinity.sent((), session, "a")
    assert preferred(affinity, (), session, {**IDLE, "a": 1000}) == ("a", 0)
    assert preferred(affinity, (), session, {"b": 0}) == (None, 0)
    affinity.sent((), session, "b")
    assert preferred(affinity, (), session, IDLE) == ("b", 0)


def test_what_is_remembered_is_bounded_and_the_latest_stays() -> None:
    affinity: Affinity[str] = Affinity(max_keys=100)
    for number in range(1000):
        affinity.sent((number,), None, "a")
    assert len(affinity) == 100
    assert preferred(affinity, (999,), None, IDLE) == ("a", 1)
    assert preferred(affinity, (1,), None, IDLE) == (None, 0)


def route(session_header: str = "", **body: Any) -> tuple[int | None, tuple[int, ...]]:
    prompt = Prompt(ForwardedBody(**body), {"x-session-id": session_header})
    return prompt.session, prompt.keys


def test_a_longer_conversation_has_the_keys_of_the_shorter_one() -> None:
    first = [{"role": "user", "content": "x" * 3 * PIECE}]
    later = [*first, {"role": "assistant", "content": "y" * 2 * PIECE}, {"role": "user", "content": "z"}]
    keys = route(model="m", messages=first)[1]
    assert len(keys) == 3
    assert route(model="m", messages=later)[1][:3] == keys
    assert not set(route(model="m", messages=first, tools=[{"type": "function"}])[1]) & set(keys)


def test_sessions_are_known_by_header_and_field_and_bad_bodies_have_none() -> None:
    assert route(session_id=5)[0] == route("5")[0] == session_key("5")
    assert route(session_id=-1)[0] is None
    deep: list[Any] = []
    for _ in range(900):
        deep = [deep]
    bad: list[dict[str, Any]] = [{"messages": 5}, {"messages": deep}, {"prompt": "\ud800"}, {"tools": ["\ud800"]}]
    for body in bad:
        assert route(session_id=[], **body) == (None, ())


def test_random_traffic_is_only_sent_where_it_may_go() -> None:
    chance = random.Random(0)
    affinity: Affinity[int] = Affinity(slack=3, max_keys=50)
    loads = dict.fromkeys(range(4), 0)
    for _ in range(3000):
        keys = prefix_keys(bytes([chance.randrange(3)]) * PIECE * chance.randrange(4))
        session = session_key(str(chance.randrange(30))) if chance.random() < 0.2 else None
        holder, pieces = preferred(affinity, keys, session, loads)
        if holder is not None and session is None:
            assert loads[holder] <= min(loads.values()) + 3
            assert 1 <= pieces <= len(keys)
        replica = chance.choice(list(loads)) if holder is None else holder
        affinity.sent(keys, session, replica)
        loads[replica] = max(0, loads[replica] + chance.choice((-1, 1)))
        assert len(affinity) <= 50
