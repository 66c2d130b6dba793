"""Rules of a grammar (EBNF) of plans: for values in JSON, and as models write them in other ways."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import permutations
from typing import Any, NamedTuple

from lmdeploy.json_schema import charsets
from lmdeploy.json_schema.charsets import EVERY, PLAIN, Ranges
from lmdeploy.json_schema.errors import Budget, SchemaError
from lmdeploy.json_schema.expansion import Expansion
from lmdeploy.json_schema.expressions import body_of, class_of
from lmdeploy.json_schema.keywords import EVERYTHING
from lmdeploy.json_schema.languages import NOTHING, Language, restricted
from lmdeploy.json_schema.numbers import Decimals
from lmdeploy.json_schema.plans import ArrayPlan, Kind, ObjectPlan, Plan, Planner, State, Text
from lmdeploy.json_schema.sets import Conjunction, Values
from lmdeploy.json_schema.values import exact, is_number

_NAME = re.compile(r"[a-z]+\d*")  # of a rule that any grammar may have
_OWN_NAME = re.compile(r'"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]|\b([rv]\d+)')  # of a rule of this schema, in a body
_MAX_TEXT = 1 << 20  # characters of the rules
_MAX_FREE = 8  # members whose order is free: each set of them is a rule
_MAX_PERMUTED = 4  # the same of an object of an enum: each order is written
# Of 64 bits, and of at most 17 digits on each side; Python reads larger powers as infinity.
_NUMBERS = (
    'integer ::= "-"? ("0" | [1-9] [0-9]{0,18})',
    'number ::= "-"? ("0" | [1-9] [0-9]{0,16}) ("." [0-9]{1,17})? ([eE] [+-]? ([0-9]{1,2} | "1" [0-9] [0-9]))?',
)


@dataclass(frozen=True, slots=True)
class Syntax:
    """How values are written."""

    text: Callable[[str], str]  # writes a string
    rules: tuple[str, ...]  # for `string`, and for `name` of a member of an object
    quote: str  # around the strings of a language
    character: Callable[[Ranges], str]  # returns what writes one of some characters within a string
    characters: Ranges  # that can be written so
    member: Callable[[str], str]  # writes a member's name
    comma: str  # parts of rules: between items, after a member's name, and within brackets
    colon: str
    blank: str = ""
    words: tuple[str, str, str] = ("true", "false", "null")
    zero: str = ""  # part of a rule that may follow an integer, as 1.0 is one
    is_json: bool = False  # members may have names of a language
    is_sorted: bool = False  # members come in alphabetical order
    has_free_order: bool = False  # members come in any order, not in the schema's
    has_additional: bool = False  # members and items may come that the schema does not speak of


def quoted(text: str) -> str:
    """Return a part of a rule that reads a text."""
    return json.dumps(text, ensure_ascii=False)


_ESCAPES = {0x08: "b", 0x09: "t", 0x0A: "n", 0x0C: "f", 0x0D: "r", 0x22: '\\"', 0x5C: "\\\\"}


@lru_cache(maxsize=512)
def _json_character(ranges: Ranges) -> str:
    options = [class_of(plain)] if (plain := charsets.intersection(ranges, PLAIN)) else []
    escaped = [code for code in (*range(0x20), 0x22, 0x5C) if charsets.holds(ranges, chr(code))]
    if short := "".join(_ESCAPES[code] for code in escaped if code in _ESCAPES):
        options.append(rf'"\\" [{short}]')
    others = [f"{code:02x}" for code in escaped if code not in _ESCAPES]
    lows = {high: "".join(code[1] for code in others if code[0] == high) for high in "01"}
    options += [rf'"\\u00{high}" [{low}]' for high, low in lows.items() if low]
    return options[0] if options == [class_of(ranges)] else f"({' | '.join(options)})"


def _json_text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


JSON = Syntax(
    text=_json_text,
    rules=(
        "name ::= string",
        r'string ::= "\"" ([^"\\\u0000-\u001f] | "\\" (["\\/bfnrt] | "u" code))* "\""',
        r'code ::= [0-9A-Ca-cEFef] hex hex hex | [Dd] ([0-7] hex hex | [89ABab] hex hex "\\u" [Dd] [C-Fc-f] hex hex)',
        "hex ::= [0-9A-Fa-f]",
    ),
    quote='"',
    character=_json_character,
    characters=EVERY,
    member=_json_text,
    comma='", "',
    colon='": "',
    zero=' ".0"?',
    is_json=True,
)
"""JSON without white space but after commas and colons: a model may otherwise write it without end."""

LOOSE_JSON = replace(
    JSON,
    zero="",
    rules=(*JSON.rules, r"blank ::= [ \n\r\t]?"),
    comma='blank "," blank',
    colon='blank ":" blank',
    blank="blank ",
)
"""JSON with a white space, or none, wherever it may be."""


class _Option(NamedTuple):
    """An alternative of a rule, and the names of the schema's rules in it."""

    body: str
    names: list[str]


class Rules:
    """Writes what a schema, whose text has `size` characters, allows as rules in one syntax.

    Raises `SchemaError` where it is none, is not enforced, or no value meets it.
    """

    def __init__(self, schema: Any, size: int, syntax: Syntax = JSON) -> None:
        self.syntax = syntax
        self._expansion = Expansion(Budget(size))
        self._planner = Planner(self._expansion, has_additional=syntax.has_additional)
        self._plans: dict[Conjunction, list[Plan]] = {}  # one for each option of the conjunction's rule
        self._names: dict[Conjunction, str] = {}
        self._waiting: list[Conjunction] = []
        self._rules: dict[str, list[_Option]] = {}
        self._productive: set[str] = set()
        self._settled = 0  # rules of which this is known
        self._refusals: dict[str, SchemaError] = {}  # by the rules that must not be needed
        self._left = _MAX_TEXT
        self._numbers: dict[Decimals, str] = {}
        self.root = self._expansion.document(schema)
        self.value(self.root)
        self._finish()
        if not self.is_productive(self.root):
            raise SchemaError(self.root[0][0].pointer if self.root else "", "no value meets this schema")

    # ---- what there is ----

    def plans(self, conjunction: Conjunction) -> list[Plan]:
        """Return the plans of a conjunction of which there are values; of anything, one of each type."""
        if self._expansion.of(conjunction) is EVERYTHING:
            return [Values((None, True, False)), *map(Kind, ("number", "string", "array", "object"))]
        options = self._rules[self._names[conjunction]]
        return [plan for plan, option in zip(self._plans[conjunction], options, strict=True) if self._ends(option)]

    def is_productive(self, conjunction: Conjunction) -> bool:
        """Return whether there are values of a conjunction."""
        return conjunction not in self._names or self._names[conjunction] in self._productive

    def _ends(self, option: _Option) -> bool:
        return self._productive.issuperset(option.names)

    def _finish(self) -> None:
        """Write all rules within reach, and find those with an end: a schema that always needs itself has none."""
        while self._waiting:
            conjunction = self._waiting.pop()
            plans = [plan for kind in self._expansion.of(conjunction) for plan in self._planner.of(kind)]
            self._expansion.budget.spend(1 + len(plans), conjunction[0][0].pointer)
            self._plans[conjunction] = plans
            self._add([*map(self._written, plans)], self._names[conjunction])
        if len(self._rules) == self._settled:
            return
        self._settled = len(self._rules)
        users: dict[str, list[str]] = {}
        for name, options in self._rules.items():
            for needed in {name for option in options for name in option.names}:
                users.setdefault(needed, []).append(name)
        waiting = [*self._rules]
        while waiting:
            name = waiting.pop()
            if name not in self._productive and any(map(self._ends, self._rules[name])):
                self._productive.add(name)
                waiting += users.get(name, ())

    # ---- what is written ----

    def grammar(self, body: str | None = None) -> str:
        """Return the grammar whose root is `body`, which names rules that were made; None: a value of the schema."""
        self._finish()
        root = _option(self.value(self.root) if body is None else body)
        bodies = {"root": root.body}
        waiting = [*root.names]
        while waiting:
            name = waiting.pop()
            if name in self._refusals:
                raise self._refusals[name]
            if name not in bodies:
                options = [option for option in self._rules[name] if self._ends(option)]
                bodies[name] = " | ".join(dict.fromkeys(option.body for option in options))
                waiting += (name for option in options for name in option.names)
        syntax = self.syntax
        comma, colon, blank = syntax.comma, syntax.colon, syntax.blank
        true, false, null = map(quoted, syntax.words)
        basic = [
            f'array ::= "[" {blank}(any ({comma} any)*)? {blank}"]"',
            f'object ::= "{{" {blank}(anymember ({comma} anymember)*)? {blank}"}}"',
            f"anymember ::= name {colon} any",
            f"any ::= string | number | {true} | {false} | {null} | array | object",
            *_NUMBERS,
            *syntax.rules,
        ]
        text = "\n".join(f"{name} ::= {body}" for name, body in bodies.items())
        named = {*_NAME.findall(text)}
        for rule in (*basic, *basic):  # those that are needed, in whose order no rule needs one above two others
            if rule.partition(" ")[0] in named:
                named.update(_NAME.findall(rule))
        return "\n".join([text, *(rule for rule in basic if rule.partition(" ")[0] in named)])

    def value(self, conjunction: Conjunction) -> str:
        """Return the name of the rule of a conjunction's values."""
        if self._expansion.of(conjunction) is EVERYTHING:
            return "any"
        if conjunction not in self._names:
            self._names[conjunction] = self._add([], f"v{len(self._names)}")
            self._waiting.append(conjunction)
        return self._names[conjunction]

    def either(self, plans: Sequence[Plan]) -> str:
        """Return the body of a rule of what is of any plan."""
        return " | ".join(dict.fromkeys(map(self._written, plans)))

    def _written(self, plan: Plan) -> str:
        match plan:
            case Values(values):
                return " | ".join(map(self.literal, values))
            case Kind(name):
                return name + (self.syntax.zero if name == "integer" else "")
            case Text(language, pointer):
                return f"{quoted(self.syntax.quote)} ({self.strings(language, pointer)}) {quoted(self.syntax.quote)}"
            case Decimals():
                if plan not in self._numbers:
                    self._numbers[plan] = self._add(plan.options(self._add, self._expansion.budget))
                return self._numbers[plan] + (self.syntax.zero if plan.are_integers_of_doubles else "")
            case ArrayPlan():
                inner = self._counted(plan.states) if plan.states else self._items(plan)
                return f'"[" {self.syntax.blank}{inner} {self.syntax.blank}"]"'
            case ObjectPlan():
                return f'"{{" {self.syntax.blank}{self.members(plan)} {self.syntax.blank}"}}"'

    def strings(self, language: Language, pointer: str) -> str:
        """Return the body of a rule of the strings of a language, without quotes.

        Raises
        ------
        ValueError
            All of them have characters that cannot be written.
        """
        characters = self.syntax.characters
        writable = language if characters == EVERY else restricted(language, characters)
        if writable == NOTHING:
            raise ValueError("the keyword pattern, with characters that the format escapes")
        self._expansion.budget.spend(1, pointer)
        return body_of(writable, self.syntax.character)

    def literal(self, value: Any) -> str:
        """Return a part of a rule that reads a value."""
        syntax = self.syntax
        match value:
            case None | bool():
                return quoted(syntax.words[0 if value else 1 if value is False else 2])
            case str():
                return quoted(syntax.text(value))
            case list():
                return self._bracketed("[", map(self.literal, value), "]")
            case dict():
                names = sorted(value, key=str.lower) if syntax.is_sorted else [*value]
                parts = [f"{quoted(syntax.member(name))} {syntax.colon} {self.literal(value[name])}" for name in names]
                orders = permutations(parts) if syntax.has_free_order and len(parts) <= _MAX_PERMUTED else [parts]
                options = " | ".join(self._bracketed("{", order, "}") for order in orders)
                return f"({options})" if " | " in options else options
        if is_number(value) and exact(value).denominator == 1:
            return quoted(str(int(exact(value)))) + syntax.zero
        return quoted(json.dumps(value))

    def _bracketed(self, begin: str, parts: Any, end: str) -> str:
        blank = self.syntax.blank
        return f"{quoted(begin)} {blank}{f' {self.syntax.comma} '.join(parts)} {blank}{quoted(end)}"

    def _add(self, options: Sequence[str], name: str = "") -> str:
        """Add a rule, of which a text is of one of the options, and return its name."""
        name = name or f"r{len(self._rules)}"
        self._rules[name] = [*map(_option, options)]
        self._left -= sum(map(len, options))
        if self._left < 0:
            raise SchemaError("", f"takes more than {_MAX_TEXT} characters as a grammar")
        return name

    # ---- items ----

    def _items(self, plan: ArrayPlan) -> str:
        """Return the name of the rule of an array's items."""
        comma, low, high, first = self.syntax.comma, plan.low, plan.high, len(plan.prefix)
        options = ['""'] if low <= first else []
        if plan.rest is not None and (high is None or high >= max(low, first + 1)):
            rest = self.value(plan.rest)
            done = first or 1
            counts = f"{{{max(low - done, int(first > 0))},{'' if high is None else high - done}}}"
            options.append(f"{'' if first else rest} ({comma} {rest}){counts}")
        tail = self._add(options)
        for index in reversed(range(first)):
            one = f"{comma if index else ''} {self.value(plan.prefix[index])} {tail}"
            tail = self._add([one] if index < low else [one, '""'])
        return tail

    def _counted(self, states: Sequence[State]) -> str:
        """Return the name of the rule of an array's items, which follow states."""
        rules = [self._add([]) for _ in states]

        def options(state: State, comma: str) -> list[str]:
            steps = [f"{comma} {self._item(what)} {rules[to]}" for what, to in state.steps]
            return [*steps, '""'] if state.may_end else steps

        for rule, state in zip(rules, states, strict=True):
            self._add(options(state, self.syntax.comma), rule)
        return self._add(options(states[0], ""))

    def _item(self, what: Conjunction | Values) -> str:
        return self._written(what) if isinstance(what, Values) else self.value(what)

    # ---- members ----

    def members(self, plan: ObjectPlan, member: Callable[[str], str] | None = None, others: str = "") -> str:
        """Return the name of the rule of an object's members, without what is around them.

        `member` and `others` write a name and what is before its value, if not as in an object; parts of a rule.
        """
        syntax = self.syntax
        member = member or (lambda name: f"{quoted(syntax.member(name))} {syntax.colon}")
        known = sorted(plan.members, key=lambda member: member[0].lower()) if syntax.is_sorted else plan.members
        needed = sum(is_required for *_, is_required in known)
        low = plan.low if plan.low > needed else 0
        groups = plan.groups
        if low > needed + 1 and groups:
            # Members of a group may have the same name: of those, only one is sure to count.
            if len(known) < low:
                needs = " ".join(self.value(value) for _, value, is_required in known if is_required)
                rule = self._add([f"{needs} {self.value(group.value)}" for group in groups])
                reason = "is enforced up to the members with their own names, and one more"
                self._refusals[rule] = SchemaError(plan.pointer, reason)
                return rule
            groups = ()
        high = plan.high if plan.high is not None and (groups or plan.high < len(known)) else None
        max_members = max(low, 1 if high is None else high)
        further = [f"{others or self._name(group.names)} {self.value(group.value)}" for group in groups]
        further_rule = self._add(further) if further else ""
        ones = [f"{member(name)} {self.value(value)}" for name, value, _ in known]
        if max_members > 1 or syntax.has_free_order:  # they are named in several rules
            ones = [self._add([one]) for one in ones]
        required = {number for number, (*_, is_required) in enumerate(known) if is_required}
        if syntax.has_free_order and len(known) > _MAX_FREE:
            raise SchemaError(plan.pointer, f"property_order is free for up to {_MAX_FREE} members, got {len(known)}")
        names: dict[tuple[frozenset[int], int], str] = {}

        def after(number: int, left: frozenset[int], count: int) -> list[str]:
            """Return how a member may come after `count` others, and what follows."""
            comma = f"{syntax.comma} " if count else ""
            return [] if count == high else [f"{comma}{ones[number]} {following(left, count + 1)}"]

        def following(left: frozenset[int], count: int) -> str:
            """Return the rule of what follows `count` members, where some are left."""
            count = min(count, max_members)
            if (left, count) not in names:
                self._expansion.budget.spend(1 / 4, plan.pointer)
                if syntax.has_free_order:
                    options = [option for number in sorted(left) for option in after(number, left - {number}, count)]
                elif left:
                    options = after(number := min(left), left - {number}, count)
                    options += [] if number in required else [following(left - {number}, count)]
                else:
                    options = []
                if not left or (syntax.has_free_order and not left & required):
                    options += self._end(further_rule, count, low, high)
                names[left, count] = self._add(options)
            return names[left, count]

        every = range(len(known))
        if not syntax.has_free_order:  # the last ones first: what follows is known
            for number in reversed(every):
                for count in range(min(number, max_members), -1, -1):
                    following(frozenset(every[number:]), count)
        return following(frozenset(every), 0)

    def _end(self, further: str, count: int, low: int, high: int | None) -> list[str]:
        """Return how an object may end after `count` members."""
        options = ['""'] if count >= low else []
        if further and (high is None or count < high):
            min_more = max(low - count, 1)
            counts = f"{{{min_more - (count == 0)},{'' if high is None else high - count - (count == 0)}}}"
            first = f"{further} " if count == 0 else ""
            options.append(f"{first}({self.syntax.comma} {further}){counts}")
        return options

    def _name(self, names: Language | None) -> str:
        if names is None:
            return f"name {self.syntax.colon}"
        if not self.syntax.is_json:
            raise ValueError("the keyword patternProperties")
        return f'"\\"" ({self.strings(names, "")}) "\\"" {self.syntax.colon}'


def _option(body: str) -> _Option:
    return _Option(body, [*filter(None, _OWN_NAME.findall(body))])
