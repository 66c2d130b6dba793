"""Field declarations of a ModelSpec: type, range or choices; comments say what each means.

Each is declared once, in ``parts.py`` or ``model.py``. ``problems_of_fields`` checks values by these declarations, and
``make fields`` writes the C++ structs with the rules that their reader checks (``tools/fields/spec.py``).
"""

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass
from typing import Annotated, Any

# No model comes near; a config beyond it is damaged, and sizes could overflow.
LARGEST_SIZE = 1 << 27
LARGEST_COUNT = 1 << 12  # of layers, and of experts in one
_COUNTS = frozenset({"num_layers", "num_hidden_layers", "n_layers", "num_experts", "n_routed_experts"})


@dataclass(frozen=True)
class Whole:
    """A whole number from ``low`` to ``high``."""

    low: int = 0
    high: int = LARGEST_SIZE


@dataclass(frozen=True)
class Real:
    """A finite number, above ``above`` or from ``low`` on. In C++ a float, or a double."""

    above: float | None = None
    low: float | None = None
    is_double: bool = False


@dataclass(frozen=True)
class OneOf:
    """One of some names. In C++ text or ``enum``, which ``header`` has or, without one, ``make fields`` writes."""

    names: tuple[str, ...]
    enum: str = ""
    header: str = ""


@dataclass(frozen=True)
class PerLayer:
    """A tuple with a value for each layer, or an empty one: ``default`` for each, and C++ fills it in."""

    default: bool | int | float | str


Rule = Whole | Real | OneOf
Size = Annotated[int, Whole(1)]
Count = Annotated[int, Whole(1, LARGEST_COUNT)]
OptionalSize = Annotated[int, Whole()]  # 0: there is none
Positive = Annotated[float, Real(above=0)]
Cap = Annotated[float, Real(low=0)]  # 0: there is none
Finite = Annotated[float, Real()]


@dataclass(frozen=True)
class Field:
    """One field."""

    name: str
    kind: Any  # its type, or that of a tuple's items
    rule: Rule | None  # what the value, or each item, may be; None: anything of the type
    # Whether it is a tuple, and whether it may be None
    is_tuple: bool
    is_optional: bool
    per_layer: PerLayer | None  # of a tuple that has a value for each layer
    default: Any  # MISSING without one

    @property
    def is_required(self) -> bool:
        """Whether a description must have it."""
        return self.default is MISSING and not self.is_optional


@functools.cache
def fields_of(part: type) -> tuple[Field, ...]:
    """Return the fields of one of the dataclasses."""
    found = []
    hints = typing.get_type_hints(part, include_extras=True)
    for field in dataclasses.fields(part):
        rules: list[Any] = []
        kind, is_tuple, is_optional = hints[field.name], False, False
        while arguments := typing.get_args(kind):
            origin = typing.get_origin(kind)
            if origin is Annotated:
                rules += kind.__metadata__
            is_tuple |= origin is tuple
            is_optional |= types.NoneType in arguments
            kind = next(argument for argument in arguments if argument is not types.NoneType)
        rule = next((rule for rule in rules if isinstance(rule, Whole | Real | OneOf)), None)
        per_layer = next((rule for rule in rules if isinstance(rule, PerLayer)), None)
        default = field.default if field.default_factory is MISSING else field.default_factory()
        found.append(Field(field.name, kind, rule, is_tuple, is_optional, per_layer, default))
    return tuple(found)


def problems_of_fields(part: Any, layers: int, prefix: str = "") -> Iterator[str]:
    """Yield a sentence for each field of ``part``, and of the parts in it, that is not what its declaration says."""
    kind: type = type(part)
    for field in fields_of(kind):
        value, name = getattr(part, field.name), prefix + field.name
        if value is None and field.is_optional:
            continue
        if field.per_layer and len(value) not in {0, layers}:
            yield f"{name} must have a value for each of {layers} layers, got {len(value)}"
        items = {f"{name}[{index}]": item for index, item in enumerate(value)} if field.is_tuple else {name: value}
        for item_name, item in items.items():
            if dataclasses.is_dataclass(item):
                yield from problems_of_fields(item, layers, f"{item_name}.")
            elif field.rule is not None:
                yield from value_problems(item_name, item, field.rule)


def value_problems(name: str, value: Any, rule: Rule) -> Iterator[str]:
    """Yield what is wrong with one value."""
    if isinstance(rule, OneOf):
        if value not in rule.names:
            yield f"{name} must be one of {', '.join(rule.names)}, got {value!r}"
    elif isinstance(rule, Whole):
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if is_whole and value > rule.high:
            yield f"{name} must be at most {rule.high}, got {value!r}"
        elif not is_whole or value < rule.low:
            yield f"{name} must be a whole number >= {rule.low}, got {value!r}"
    else:
        above, low = (-math.inf if bound is None else bound for bound in (rule.above, rule.low))
        if not isinstance(value, int | float) or not low <= value < math.inf or value <= above:
            bound = f" > {above:g}" if rule.above is not None else f" >= {low:g}" if rule.low is not None else ""
            yield f"{name} must be a finite number{bound}, got {value!r}"


def size_problems(sizes: Mapping[str, object]) -> list[str]:
    """Return a sentence for each named value that is no size, or no number of layers or experts."""
    problems: list[str] = []
    for name, value in sizes.items():
        is_count = name.rpartition(" ")[2].rpartition(".")[2] in _COUNTS
        problems += value_problems(name, value, Whole(1, LARGEST_COUNT if is_count else LARGEST_SIZE))
    return problems
