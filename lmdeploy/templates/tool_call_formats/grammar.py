"""Grammars of required or optional tool calls: structural tags of xgrammar, which the engine compiles.

They are JSON objects, as `response_format` has them under ``structural_tag``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lmdeploy.json_schema import LOOSE_JSON, Rules, Syntax, grammar_of, relaxed, rules_of
from lmdeploy.json_schema.plans import Group, Kind, ObjectPlan
from lmdeploy.json_schema.sets import TRUE, Conjunction

Grammar = dict[str, Any]

_MAX_CALLS = 8  # one after the other; a weak model may call until its tokens are spent


_ANY_OBJECT = ObjectPlan((), (Group(None, TRUE),), 0, None, "")


@dataclass(frozen=True, slots=True)
class FunctionSchema:
    """A function that may be called.

    Raises `SchemaError` if it is strict, and has a keyword that no grammar can hold.
    """

    name: str  # its name
    parameters: dict[str, Any]  # the JSON schema of its arguments, an object; readers go by it
    # Arguments are held to all of the schema. Otherwise, keywords that no grammar can hold are left out
    is_strict: bool = False
    enforced: dict[str, Any] = field(init=False)  # the same, without the keywords that are left out

    def __post_init__(self) -> None:
        schema = self.parameters if self.is_strict else relaxed(self.parameters)
        grammar_of(schema, LOOSE_JSON)
        object.__setattr__(self, "enforced", schema)

    def rules(self, syntax: Syntax) -> tuple[Rules, list[ObjectPlan]]:
        """Return the writer of the arguments, and the objects of which they are one.

        Raises `ValueError` if one is listed as a whole, or has members whose names come by a rule, alongside others or
        with a count.
        """
        rules = rules_of(self.enforced, syntax)
        shapes = [_ANY_OBJECT if plan == Kind("object") else plan for plan in rules.plans(rules.root)]
        found = [shape for shape in shapes if isinstance(shape, ObjectPlan)]
        if len(found) < len(shapes):
            raise ValueError("the keyword enum or const, of whole objects")
        return rules, found


@dataclass(frozen=True, slots=True)
class CallGrammar:
    """The calls of some functions."""

    tags: list[Grammar]  # a tag for a call of each function: ``begin``, ``content`` and ``end``
    # Around all calls, and between two
    before: str = ""
    separator: str = ""
    after: str = ""
    trigger: str = ""  # what a call is known by among other text; empty: nothing
    is_alone: bool = False  # a call ends the response

    def calls(self, *, several: bool) -> Grammar:
        """Return the grammar of a call, or of several, and nothing else."""
        several = several and not self.is_alone
        if not several and len(self.tags) == 1:
            inner = self.tags[0]
        else:
            one = any_of(self.tags)
            further = sequence([constant(self.separator), one])
            rest = {"type": "repeat", "min": 0, "max": _MAX_CALLS - 1, "content": further}
            inner = sequence([one, rest if several else None])
        return sequence([constant(self.before), inner, constant(self.after)])

    def text(self, *, several: bool) -> Grammar | None:
        """Return the grammar of text in which calls may be; None: they are not known by anything."""
        if not self.trigger:
            return None
        tags = self.tags
        if self.before:
            calls = CallGrammar(self.tags, separator=self.separator).calls(several=several)
            tags = [tag(self.before, calls, self.after)]
        once = self.is_alone or not several
        return {"type": "triggered_tags", "triggers": [self.trigger], "tags": tags, "stop_after_first": once}


def further_members(rules: Rules, shape: ObjectPlan) -> Conjunction | None:
    """Return the schema of members that an object does not name; None: there are none.

    Alongside members with names there are none: a name could come twice, with values of different schemas. Raises
    `ValueError` if the object has a keyword that cannot be held with names that come twice; names it.
    """
    groups = [] if shape.members else [group for group in shape.groups if rules.is_productive(group.value)]
    if any(group.names is not None for group in groups):
        raise ValueError("the keyword patternProperties")
    needed = sum(is_required for *_, is_required in shape.members)
    if shape.low > needed:
        raise ValueError("the keyword minProperties")
    if shape.high is not None and (groups or shape.high < len(shape.members)):
        raise ValueError("the keyword maxProperties")
    return groups[0].value if groups else None


def named_members(rules: Rules, shape: ObjectPlan, member: Callable[[str], str] | None = None, others: str = "") -> str:
    """Return the rule of an object's members, with parameters of `Rules.members`; raises as `further_members` does."""
    further = further_members(rules, shape)
    groups = () if further is None else (Group(None, further),)
    return rules.members(replace(shape, groups=groups), member, others)


def tag(begin: str, content: Grammar, end: str) -> Grammar:
    """Return a grammar between two texts."""
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def constant(text: str) -> Grammar | None:
    """Return a text; None for none."""
    return {"type": "const_string", "value": text} if text else None


def sequence(elements: Sequence[Grammar | None]) -> Grammar:
    """Return one grammar after the other; those that are None are left out."""
    given = [element for element in elements if element is not None]
    return given[0] if len(given) == 1 else {"type": "sequence", "elements": given}


def any_of(elements: Sequence[Grammar]) -> Grammar:
    """Return a grammar of any of these."""
    return elements[0] if len(elements) == 1 else {"type": "or", "elements": list(elements)}


def json_value(schema: dict[str, Any]) -> Grammar:
    """Return JSON that fits a schema, with little white space: a model may write it forever."""
    return {"type": "json_schema", "json_schema": schema}


def json_object_tag(begin: str, function: FunctionSchema, name: str, arguments: str, end: str) -> Grammar:
    """Return a call as a JSON object with two members of those names, between two texts."""
    head = f'{begin}{{"{name}": "{function.name}", "{arguments}": '
    return tag(head, json_value(function.enforced), "}" + end)


def rules_part(rules: str) -> Grammar:
    """Return a grammar in EBNF as a part of others."""
    return {"type": "grammar", "grammar": rules}
