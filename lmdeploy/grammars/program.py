"""Programs that the engine follows (``backend_cpp/engine/grammar/program.h``), of grammars that xgrammar has read."""

from __future__ import annotations

import json
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush
from itertools import chain
from typing import Any

from lmdeploy.json_schema import charsets
from lmdeploy.json_schema.charsets import Ranges

# xgrammar's expressions: a type and integers.
(
    _TEXT,
    _CHARACTERS,  # whether they are those left out, then first and last of each range
    _CHARACTERS_STAR,  # the same, any number of times
    _EMPTY,
    _RULE,
    _SEQUENCE,
    _CHOICES,
    _TAG_DISPATCH,  # free text: what begins a rule and the rule, pairs; whether text follows it; what may not come
    _REPETITION,  # rule, least, most
    _TOKENS,  # any of them
    _TOKENS_BUT,  # any but them
    _TOKEN_DISPATCH,  # is not supported
    _EXPRESSION,  # whether it has flags, and the bytes of a regular expression
    _SUBSTRING,  # of chunks: how many bytes, and those
) = range(14)

# Kinds of the program's nodes, and what regions limit.
_BYTE, _BYTES, _TOKEN, _SPLIT, _CALL, _REGION, _REPEAT, _RETURN, _WHEN_FULL = range(9)
_MAX_TOKENS, _SHORTEST = range(2)

_END = 0  # the node at the end of each rule
_MAX_DEPTH = 64  # of expressions
_MAX_PREFIX = 400  # bytes that alternatives have in common and that are read together
_MAX_STATES = 20_000  # of texts that begin a tag
_MAX_NODES = 400_000
_NO_TEXT = 1 << 30  # in the place of a text's length

# UTF-8 (RFC 3629) by its lengths: first and last character, mark of the first byte, how many bytes come after it.
_LENGTHS = ((0, 0x7F, 0, 0), (0x80, 0x7FF, 0xC0, 1), (0x800, 0xFFFF, 0xE0, 2), (0x10000, charsets.LAST, 0xF0, 3))

Node = tuple[int, int, int, int, int]
Tree = tuple[tuple[Ranges, "Tree"], ...]
"""Bytes, and what comes after them; nothing at the end of a character."""


class UnknownGrammarError(ValueError):
    """A grammar with what the engine cannot follow, or that no text fits."""


@dataclass(slots=True)
class _Grammar:
    """Expressions of a grammar, and the numbers of its rules in the program."""

    expressions: list[tuple[int, list[int]]]
    numbers: list[int]
    stops: dict[int, tuple[int, int]]  # rules that end without the second of these, where they have no room for it


@lru_cache(maxsize=512)
def utf8_of(is_negated: int, *bounds: int) -> Tree:
    """Return the bytes of the characters within bounds, first and last of each range, or of all others."""
    characters = charsets.union(tuple(zip(bounds[::2], bounds[1::2], strict=True)))
    characters = charsets.intersection(charsets.complement(characters) if is_negated else characters, charsets.EVERY)
    return tuple(
        way
        for low, high, mark, to_come in _LENGTHS
        for way in _utf8(charsets.intersection(characters, ((low, high),)), mark, to_come)
    )


@lru_cache(maxsize=4096)
def _utf8(ranges: Ranges, mark: int, to_come: int) -> Tree:
    """Return the bytes of ranges of the bits that are left when `to_come` bytes are to come after the next one."""
    size = 1 << 6 * to_come
    blocks: dict[int, list[tuple[int, int]]] = defaultdict(list)  # by the next byte
    for low, high in ranges:
        for byte in range(low // size, high // size + 1):
            blocks[byte].append((max(low - byte * size, 0), min(high - byte * size, size - 1)))
    alike: dict[Ranges, list[str]] = defaultdict(list)
    for byte, left in blocks.items():
        alike[tuple(left)].append(chr(mark | byte))
    return tuple((charsets.of(same), _utf8(left, 0x80, to_come - 1) if to_come else ()) for left, same in alike.items())


def program_of(grammar: str, read_expression: Callable[[str], str]) -> bytes:
    """Return the program of a grammar as xgrammar writes it, in JSON, before it optimizes it.

    `read_expression` returns the grammar of a regular expression. Raises `UnknownGrammarError`.
    """
    builder = _Builder(read_expression)
    builder.add_rules(grammar)
    try:
        return builder.program()
    except OverflowError:
        raise UnknownGrammarError("a number in it is too large") from None


class _Builder:
    def __init__(self, read_expression: Callable[[str], str]) -> None:
        self._read_expression = read_expression
        self._grammar = _Grammar([], [], {})
        self._nodes: list[Node] = [(_RETURN, 0, 0, 0, 0)]
        self._lists: list[int] = []
        self._starts: list[int] = []
        self._names: list[str] = []

    def add_rules(self, source: str) -> int:
        """Add a grammar's rules, the root first, and return the root's number."""
        grammar, outer = json.loads(source), self._grammar
        data, rules, root = grammar["grammar_expr_data"], grammar["rules"], grammar["root_rule_id"]
        expressions = [(data[at], data[at + 2 : at + 2 + data[at + 1]]) for at in grammar["grammar_expr_indptr"]]
        numbers = [*range(first := len(self._starts), first + len(rules))]
        numbers[0], numbers[root] = numbers[root], numbers[0]
        stops = {rule: (text, end) for rule, _, is_stop, text, end, *_ in grammar["suffix_stop_infos"] if is_stop}
        self._grammar = _Grammar(expressions, numbers, stops)
        self._starts += numbers
        self._names += [rule[0] for rule in rules]
        self._names[first], self._names[first + root] = rules[root][0], rules[0][0]
        for rule, number in enumerate(numbers):
            self._starts[number] = self._rule(rule, *rules[rule])
        self._grammar = outer
        return first

    def _rule(self, rule: int, name: str, body: int, *fields: Any) -> int:
        _, _, max_tokens, max_chars, _, is_shortest, *_ = fields
        if rule in self._grammar.stops and max_tokens >= 0:
            text, end = self._grammar.stops[rule]
            marked = self._add(_CALL, self._grammar.numbers[end])
            start = self._add(_CALL, self._grammar.numbers[text], 0, 0, self._split([self._add(_WHEN_FULL), marked]))
        else:
            start = self._options(rule, body)
        if is_shortest:
            start = self._region(name, start, 0, _SHORTEST)
        if max_chars >= 0:
            raise UnknownGrammarError("max_chars is not supported")
        return self._region(name, start, max_tokens, _MAX_TOKENS) if max_tokens >= 0 else start

    def _region(self, name: str, start: int, max_count: int, limit: int) -> int:
        self._starts.append(start)
        self._names.append(name)
        return self._add(_REGION, len(self._starts) - 1, max_count, limit)

    def _options(self, rule: int, body: int) -> int:
        """Return the node of a rule.

        Options that begin with the rule itself are read as what follows it in them, after the others, any number of
        times.
        """
        kind, options = self._grammar.expressions[body]
        begins: list[int] = []
        rests: list[list[int]] = []
        for option in options if kind == _CHOICES else ():
            kind, values = self._grammar.expressions[option]
            first, *rest = values if kind == _SEQUENCE and values else [option]
            if self._grammar.expressions[first] == (_RULE, [rule]):
                rests.append(rest)
            else:
                begins.append(option)
        if not rests:
            return self._build(body, _END, 0)
        loop = self._split([])
        starts = [self._build(option, loop, 1) for option in begins]
        ways = [self._sequence(rest, loop, 1) for rest in rests if rest]
        self._nodes[loop] = self._nodes[self._split([_END, *ways])]
        return self._either(starts)

    def _add(self, kind: int, a: int = 0, b: int = 0, c: int = 0, after: int = _END) -> int:
        self._nodes.append((kind, a, b, c, after))
        return len(self._nodes) - 1

    def _list(self, values: Iterable[int]) -> int:
        first = len(self._lists)
        self._lists += values
        return first

    def _split(self, numbers: Sequence[int]) -> int:
        return self._add(_SPLIT, self._list(numbers), len(numbers))

    def _either(self, numbers: Iterable[int], depth: int = 0) -> int:
        """Return a node for one of several. What begins with the same byte is read together: states stay small."""
        following: dict[int, set[int]] = {}
        ways = []
        for number in numbers:
            kind, byte, _, _, after = self._nodes[number]
            if kind == _BYTE and depth < _MAX_PREFIX:
                following.setdefault(byte, set()).add(after)
            else:
                ways.append(number)
        for byte, targets in sorted(following.items()):
            after = targets.pop() if len(targets) == 1 else self._either(sorted(targets), depth + 1)
            ways.append(self._add(_BYTE, byte, 0, 0, after))
        return ways[0] if len(ways) == 1 else self._split(ways)

    def _text(self, values: Iterable[int], after: int) -> int:
        for byte in reversed([*values]):
            after = self._add(_BYTE, byte & 0xFF, 0, 0, after)
        return after

    def _class(self, values: list[int], after: int) -> int:
        return self._tree(utf8_of(*values), after, {})

    def _tree(self, tree: Tree, after: int, known: dict[int, int]) -> int:
        if id(tree) not in known:
            ways = [self._bytes(same, self._tree(rest, after, known) if rest else after) for same, rest in tree]
            known[id(tree)] = ways[0] if len(ways) == 1 else self._split(ways)
        return known[id(tree)]

    def _bytes(self, ranges: Ranges, after: int) -> int:
        if ranges[0][0] == ranges[-1][1]:
            return self._add(_BYTE, ranges[0][0], 0, 0, after)
        return self._add(_BYTES, self._list(chain(*ranges)), len(ranges), 0, after)

    def _sequence(self, numbers: Sequence[int], after: int, depth: int) -> int:
        for number in reversed(numbers):
            after = self._build(number, after, depth + 1)
        return after

    def _build(self, number: int, after: int, depth: int) -> int:
        """Return the node that reads an expression and continues at `after`."""
        if depth > _MAX_DEPTH:
            raise UnknownGrammarError("it is nested too deep")
        if len(self._nodes) > _MAX_NODES:
            raise UnknownGrammarError("it is too large; make it smaller")
        kind, values = self._grammar.expressions[number]
        if kind == _TEXT:
            return self._text(values, after)
        if kind == _RULE:
            return self._add(_CALL, self._grammar.numbers[values[0]], 0, 0, after)
        if kind == _SEQUENCE:
            return self._sequence(values, after, depth)
        if kind == _CHOICES:
            return self._either([self._build(option, after, depth + 1) for option in values])
        if kind == _CHARACTERS:
            return self._class(values, after)
        if kind == _CHARACTERS_STAR:  # read again, or continue
            loop = self._split([after, after])
            self._lists[self._nodes[loop][1]] = self._class(values, loop)
            return loop
        if kind == _EMPTY:
            return after
        if kind == _REPETITION:
            rule, low, high = values
            return self._add(_REPEAT, self._grammar.numbers[rule], low, high, after)
        if kind in (_TOKENS, _TOKENS_BUT):
            return self._add(_TOKEN, self._list(values), len(values), int(kind == _TOKENS_BUT), after)
        if kind == _EXPRESSION:
            return self._add(_CALL, self.add_rules(self._read_expression(bytes(values[1:]).decode())), 0, 0, after)
        if kind == _TAG_DISPATCH:
            return self._tag_dispatch(values, after)
        if kind == _SUBSTRING:
            return self._substring(values, after)
        raise UnknownGrammarError("it has what is not known here")

    def _tag_dispatch(self, values: list[int], after: int) -> int:
        """Return the node of free text up to what begins a rule: the automaton of Aho and Corasick (1975)."""
        *rules, continues, left_out = values
        children: list[dict[int, int]] = [{}]
        found: list[int | None] = [None]  # the rule of the longest text that ends in a state; -1: it must not come

        def add(text: int, rule: int) -> None:
            state = 0
            for byte in self._grammar.expressions[text][1]:
                state = children[state].setdefault(byte, len(found))
                if state == len(found):
                    children.append({})
                    found.append(None)
            is_other = rule >= 0 and found[state] not in (None, rule)
            if len(found) > _MAX_STATES or (is_other and found[state] != -1):
                raise UnknownGrammarError("it has too many texts that begin a tag, or one that begins two")
            found[state] = found[state] if is_other else rule

        for text, rule in zip(rules[::2], rules[1::2], strict=True):
            add(text, rule)
        for text in self._grammar.expressions[left_out][1]:
            add(text, -1)
        # Shorter texts first. The longest end of a state's text that is a state too continues what it does not.
        waiting = [(state, 0) for state in children[0].values()]
        for state, shorter in waiting:
            if found[state] is None or found[shorter] == -1:
                found[state] = found[shorter]
            waiting += [(child, children[shorter].get(byte, 0)) for byte, child in children[state].items()]
            children[state] = {**children[shorter], **children[state]}
        nodes = [self._split([]) for _ in found]
        then = nodes[0] if continues else after
        for state, following in enumerate(children):
            if found[state] is not None:
                continue
            bytes_to: dict[int, list[str]] = defaultdict(list)
            for byte in range(256):
                bytes_to[following.get(byte, 0)].append(chr(byte))
            ways = [after]
            for target, reading in bytes_to.items():
                begun = found[target]
                if begun is None or begun >= 0:
                    rest = (
                        nodes[target] if begun is None else self._add(_CALL, self._grammar.numbers[begun], 0, 0, then)
                    )
                    ways.append(self._bytes(charsets.of(reading), rest))
            self._nodes[nodes[state]] = self._nodes[self._split(ways)]
        return nodes[0]

    def _substring(self, values: list[int], after: int) -> int:
        """Return the node of any number of chunks in a row, from any of them on: their suffix automaton.

        (Blumer et al. 1985)
        """
        lengths, links = [0], [-1]
        children: list[dict[bytes, int]] = [{}]

        def state(length: int, link: int, ways: dict[bytes, int]) -> int:
            lengths.append(length)
            links.append(link)
            children.append(ways)
            return len(lengths) - 1

        last = at = 0
        while at < len(values):
            chunk = bytes(values[at + 1 : (at := at + 1 + values[at])])
            if not chunk:
                continue
            before, last = last, state(lengths[last] + 1, 0, {})
            while before >= 0 and chunk not in children[before]:
                children[before][chunk] = last
                before = links[before]
            if before < 0:
                continue
            target = children[before][chunk]
            if lengths[before] + 1 == lengths[target]:
                links[last] = target
                continue
            links[last] = copied = state(lengths[before] + 1, links[target], dict(children[target]))
            links[target] = copied
            while before >= 0 and children[before].get(chunk) == target:
                children[before][chunk] = copied
                before = links[before]
        nodes: dict[int, int] = {}
        for number in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
            ways = [self._text(chunk, nodes[target]) for chunk, target in sorted(children[number].items())]
            nodes[number] = self._either([after, *ways])
            if len(self._nodes) > _MAX_NODES:
                raise UnknownGrammarError("it is too large; make it smaller")
        return nodes[0]

    # ---- the whole program ----

    def program(self) -> bytes:
        """Return the program, without ways that no text gets to the end of."""
        shortest = self._shortest_texts()
        min_bytes = [shortest[start] for start in self._starts]
        if min_bytes[0] == _NO_TEXT:
            raise UnknownGrammarError("no text fits it")
        self._refuse_left_recursion(min_bytes)
        nodes = self._nodes
        for number, length in enumerate(shortest):
            kind, a, b, c, after = nodes[number]
            if length == _NO_TEXT:
                nodes[number] = (_SPLIT, 0, 0, 0, _END)
            elif kind == _REPEAT and min_bytes[a] == 0 and (c < 0 or b <= c):  # may be empty as often as is wanted
                nodes[number] = (_REPEAT, a, 0, c, after)
        lists = (
            array("i", chain.from_iterable(nodes)),
            *(array("i", one) for one in (self._lists, self._starts, min_bytes)),
        )
        sizes = (len(nodes), *map(len, lists[1:]))
        return b"".join(size.to_bytes(4, "little") + one.tobytes() for size, one in zip(sizes, lists, strict=True))

    def _shortest_texts(self) -> list[int]:
        """Return the bytes of the shortest text from each node to the end of its rule."""
        nodes, lists, starts = self._nodes, self._lists, self._starts
        users: list[list[int]] = [[] for _ in nodes]
        for number, (kind, a, b, c, after) in enumerate(nodes):
            if kind == _SPLIT:
                for way in lists[a : a + b]:
                    users[way].append(number)
            elif kind < _SPLIT:
                if kind != _TOKEN or b or c:  # a list of no token lets nothing come
                    users[after].append(number)
            elif kind < _RETURN:
                users[after].append(number)
                if kind != _REPEAT or b:
                    users[starts[a]].append(number)
        shortest = [_NO_TEXT] * len(nodes)
        waiting = [(0, number) for number, node in enumerate(nodes) if node[0] >= _RETURN]
        while waiting:  # Knuth 1977: what comes out of the heap is the shortest
            length, number = heappop(waiting)
            if shortest[number] < _NO_TEXT:
                continue
            shortest[number] = length
            for user in users[number]:
                kind, a, b, _, after = nodes[user]
                if kind < _SPLIT:
                    heappush(waiting, (length + 1, user))
                elif kind == _SPLIT:
                    heappush(waiting, (length, user))
                elif (least := shortest[after] + shortest[starts[a]] * (b if kind == _REPEAT else 1)) < _NO_TEXT:
                    heappush(waiting, (least, user))
        return shortest

    def _refuse_left_recursion(self, min_bytes: Sequence[int]) -> None:
        """Refuse rules that come to themselves before anything is read: there is no end of the engine's stacks."""
        first: dict[int, set[int]] = {}  # rules that each can begin with
        for rule, start in enumerate(self._starts):
            first[rule], waiting = set(), [start]
            seen = {start}
            while waiting:
                kind, a, b, _, after = self._nodes[waiting.pop()]
                further: Iterable[int] = ()
                if kind == _SPLIT:
                    further = self._lists[a : a + b]
                elif kind in (_CALL, _REGION, _REPEAT):
                    first[rule].add(a)
                    if min_bytes[a] == 0 or (kind == _REPEAT and b == 0):
                        further = (after,)
                waiting += (new := {*further} - seen)
                seen |= new
        try:
            TopologicalSorter(first).prepare()
        except CycleError as error:
            name = self._names[error.args[1][0]]
            raise UnknownGrammarError(
                f"the rule '{name}' begins with itself by way of another; write what is repeated with * or +"
            ) from None
