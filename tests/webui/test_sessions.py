"""Sessions take a bounded part of the memory, and those that are open keep their place."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from webui.guard import sessions as module
from webui.guard.sessions import Sessions, SessionsFull

MIB = 2**20


class Kept:
    """Sessions that are kept, and those that were forgotten."""

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}
        self.forgotten: list[str] = []
        self.sessions = Sessions(lambda name: self.sizes.get(name, 0), self.forgotten.append)

    def event(self, name: str, size: int = 1, event: int = 0) -> None:
        with self.sessions.request(name, event, size):
            assert name in self.sessions


@pytest.fixture
def kept() -> Kept:
    return Kept()


def test_the_oldest_sessions_without_a_page_are_forgotten(kept: Kept) -> None:
    with kept.sessions.page("open"):
        for number in range(module.MAX_ORPHANED + 2):
            kept.event(str(number))
        kept.event("2")
        kept.event("new")
        assert kept.forgotten == ["0", "1", "3"]
        assert "open" in kept.sessions
    kept.event("other")
    assert kept.forgotten == ["0", "1", "3", "4", "5"]


def test_long_bodies_leave_room_for_fewer_sessions(kept: Kept) -> None:
    for name in "abc":
        kept.event(name, 7 * MIB)
    assert kept.forgotten == ["a"]
    kept.event("b", MIB)  # the last body of an event is what is kept of it
    kept.event("d", 7 * MIB)
    assert kept.forgotten == ["a"]


def test_a_conversation_counts_as_what_it_has_grown_to(kept: Kept) -> None:
    kept.event("a")
    kept.sizes["b"] = module.MAX_ORPHANED_BYTES - 1
    kept.event("b")
    assert kept.forgotten == ["a"]


def test_a_session_takes_no_more_than_its_part(kept: Kept) -> None:
    with kept.sessions.page("a"):
        for event in range(4):
            kept.event("a", 8 * MIB, event)
        with pytest.raises(SessionsFull):
            kept.event("a", 8 * MIB, 4)
        kept.event("a", 8 * MIB, 3)


def test_open_sessions_that_take_all_leave_small_ones_their_place(kept: Kept) -> None:
    with ExitStack() as stack:
        for number in range(8):
            stack.enter_context(kept.sessions.page(str(number)))
            for event in range(4):
                kept.event(str(number), 8 * MIB, event)
        with pytest.raises(SessionsFull):
            kept.event("late", MIB)
        kept.event("late", 100_000)
    assert kept.forgotten
    kept.event("late", MIB)


def test_this_many_pages_may_be_open(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PAGES", 2)
    with kept.sessions.page("a"), kept.sessions.page("b"):
        with pytest.raises(SessionsFull), kept.sessions.page("c"):
            pass
        kept.event("c")
    with kept.sessions.page("c"):
        pass
