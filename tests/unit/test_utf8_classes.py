"""Classes of characters as bytes: whole characters of UTF-8, and no others."""

import random

from lmdeploy.grammars.program import Tree, utf8_of

BOUNDS = [0x20, 0x7F, 0x80, 0xE9, 0x7FF, 0x800, 0x4E2D, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x1F642, 0x10FFFF]
BROKEN = [b"\xc0\x80", b"\xc1\xbf", b"\xe0\x9f\xbf", b"\xed\xa0\x80", b"\xf0\x8f\xbf\xbf", b"\xf4\x90\x80\x80", b"\x80"]


def after(tree: Tree, text: bytes) -> Tree | None:
    """Return the bytes that may follow some others; None: those may not come."""
    for byte in text:
        ways = [rest for ranges, rest in tree if any(low <= byte <= high for low, high in ranges)]
        if not ways:
            return None
        [tree] = ways
    return tree


def test_classes_are_of_whole_characters() -> None:
    chance = random.Random(2)
    for _ in range(40):
        pairs = [sorted(chance.choices(BOUNDS, k=2)) for _ in range(2)]
        is_negated = chance.randrange(2)
        tree = utf8_of(is_negated, *pairs[0], *pairs[1])
        for code in (code for bound in BOUNDS for code in range(bound - 2, min(bound + 3, 0x110000))):
            is_listed = any(low <= code <= high for low, high in pairs) != is_negated
            is_character = not 0xD800 <= code < 0xE000
            text = chr(code).encode(errors="surrogatepass")
            assert (after(tree, text) == ()) == (is_listed and is_character)
        assert [text for text in (*BROKEN, b"\xf5", b"\xff", b"\xc3q") if after(tree, text) is not None] == []


def test_what_is_left_of_a_character_is_the_same_where_all_such_may_come() -> None:
    tree = utf8_of(1, ord('"'), ord('"'))
    begun = [b"\xc3", b"\xd7", b"\xe4\xb8", b"\xe0\xa4", b"\xed\x9f", b"\xf0\x9f\x99", b"\xf4\x8f\xbf"]
    found = [after(tree, text) for text in begun]
    assert found[0] == ((((0x80, 0xBF),), ()),)
    assert all(rest is found[0] for rest in found)  # one node, and so one state
