"""Grammars of required or optional tool calls: structural tags of xgrammar, which the engine compiles.

They are JSON objects, as `response_format` has them under ``structural_tag``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lmdeploy.json_schema import enforceable, relaxed

Grammar = dict[str, Any]

_MOST_CALLS = 8  # one after the other; a weak model may call until its tokens are spent


@dataclass(frozen=True, slots=True)
class FunctionSchema:
    """A function that may be called.

    Attributes
    ----------
    name : str
        Its name.
    parameters : dict
        The JSON schema of its arguments, an object; readers go by it.
    is_strict : bool
        Arguments are held to all of the schema. Otherwise, keywords that no grammar can hold are left out.
    enforced : dict
        The schema that grammars hold arguments to, as `lmdeploy.json_schema.enforceable` writes it.

    Raises
    ------
    SchemaError
        It is strict, and has a keyword that no grammar can hold.
    """

    name: str
    parameters: dict[str, Any]
    is_strict: bool = False
    enforced: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        schema = self.parameters if self.is_strict else relaxed(self.parameters)
        object.__setattr__(self, "enforced", enforceable(schema))

    @property
    def alternatives(self) -> list[dict[str, Any]]:
        """The enforced schemas of which the arguments fit one; none refers to another.

        Raises
        ------
        ValueError
            One lists whole objects.
        """
        found = alternatives(self.enforced, self.enforced)
        if any("enum" in each for each in found):
            raise ValueError("the keyword enum or const, of whole objects")
        return found


@dataclass(frozen=True, slots=True)
class CallGrammar:
    """The calls of some functions.

    Attributes
    ----------
    tags : list of dict
        A tag for a call of each function: ``begin``, ``content`` and ``end``.
    before, separator, after : str
        Around all calls, and between two.
    trigger : str
        What a call is known by among other text; empty: nothing.
    is_alone : bool
        A call ends the response.
    """

    tags: list[Grammar]
    before: str = ""
    separator: str = ""
    after: str = ""
    trigger: str = ""
    is_alone: bool = False

    def calls(self, *, several: bool) -> Grammar:
        """Return the grammar of a call, or of several, and nothing else."""
        several = several and not self.is_alone
        if not several and len(self.tags) == 1:
            inner = self.tags[0]
        else:
            one = any_of(self.tags)
            further = sequence([constant(self.separator), one])
            most = {"type": "repeat", "min": 0, "max": _MOST_CALLS - 1, "content": further}
            inner = sequence([one, most if several else None])
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


def alternatives(schema: dict[str, Any], root: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the alternatives of an enforced schema.

    Parameters
    ----------
    schema
        The schema.
    root
        Whose definitions it refers to.
    """
    if "$ref" in schema:
        return alternatives(root["$defs"][schema["$ref"].rpartition("/")[2]], root)
    return [each for one in schema.get("anyOf", ()) for each in alternatives(one, root)] or [schema]


def further_members(shape: Mapping[str, Any]) -> Any:
    """Return the schema of members that an enforced schema of an object does not name; False: there are none.

    Alongside members with names there are none: a name could come twice, with values of different schemas.

    Raises
    ------
    ValueError
        The schema has a keyword that cannot be held with names that come twice; names it.
    """
    named, required = shape.get("properties", {}), shape.get("required", ())
    further = False if named else shape.get("additionalProperties", True)
    open_ended = not named and ("patternProperties" in shape or further is not False)
    if open_ended and (keyword := next((key for key in _COUNTS if key in shape), None)):
        raise ValueError(f"the keyword {keyword}")
    if shape.get("minProperties", 0) > len(required):
        raise ValueError("the keyword minProperties")
    if shape.get("maxProperties", len(named)) < len(named):
        raise ValueError("the keyword maxProperties")
    return further


_COUNTS = ("patternProperties", "minProperties", "maxProperties")


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


def json_value(schema: dict[str, Any], *, is_enforced: bool = False) -> Grammar:
    """Return JSON that fits a schema, with little white space: a model may write it forever.

    ``is_enforced`` marks a schema of `enforceable`; the engine works out others.
    """
    mark = {"is_enforced": True} if is_enforced else {}
    return {"type": "json_schema", "json_schema": schema, "max_whitespace_cnt": 1} | mark


def json_object_tag(begin: str, function: FunctionSchema, name: str, arguments: str, end: str) -> Grammar:
    """Return a call as a JSON object with two members of those names, between two texts."""
    head = f'{begin}{{"{name}": "{function.name}", "{arguments}": '
    return tag(head, json_value(function.enforced, is_enforced=True), "}" + end)
