"""60 schemas of functions, as real tools ask for, are enforced in full: generated text is valid.

Together they have nested objects, enumerations, arrays with bounds, ``$ref`` (recursive as well), ``anyOf``,
``pattern``, ``format``, numbers with ranges and ``additionalProperties``. Every value of them ends within some hundred
tokens: texts and lists have bounds.
"""

import json
import random
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.support.grammar_walk import of_schema, walk
from tests.support.random_schemas import keywords_of

Schema = dict[str, Any]


def text(longest: int, **more: Any) -> Schema:
    """Return the schema of a string of bounded length."""
    return {"type": "string", "maxLength": longest, **more}


def like(pattern: str) -> Schema:
    """Return the schema of a string that a regular expression matches."""
    return {"type": "string", "pattern": f"^{pattern}$"}


def written(name: str) -> Schema:
    """Return the schema of a string in a standard format."""
    return {"type": "string", "format": name}


def whole(low: int, high: int) -> Schema:
    """Return the schema of an integer within bounds."""
    return {"type": "integer", "minimum": low, "maximum": high}


def real(low: float, high: float) -> Schema:
    """Return the schema of a number within bounds."""
    return {"type": "number", "minimum": low, "maximum": high}


def one_of(*values: Any) -> Schema:
    """Return the schema of some values."""
    return {"enum": list(values)}


def some(items: Schema, low: int = 1, high: int = 3) -> Schema:
    """Return the schema of a list with bounds."""
    return {"type": "array", "items": items, "minItems": low, "maxItems": high}


def record(optional: tuple[str, ...] = (), **members: Schema) -> Schema:
    """Return the schema of an object that has all members but the optional ones, and no others."""
    required = [name for name in members if name not in optional]
    return {"type": "object", "properties": members, "required": required, "additionalProperties": False}


def either(*schemas: Schema) -> Schema:
    """Return the schema of what is of one of several."""
    return {"anyOf": list(schemas)}


def maybe(schema: Schema) -> Schema:
    """Return the schema of what may be null."""
    return either(schema, NULL)


def to(name: str) -> Schema:
    """Return a reference to a definition."""
    return {"$ref": f"#/$defs/{name}"}


def table(values: Schema) -> Schema:
    """Return the schema of an object with names of its own, at most three."""
    return {"type": "object", "additionalProperties": values, "maxProperties": 3}


NULL: Schema = {"type": "null"}
YES_NO: Schema = {"type": "boolean"}
DATE, TIME, MAIL = written("date"), written("date-time"), written("email")
CURRENCY = one_of("EUR", "USD", "GBP", "JPY")
MONEY = record(amount=real(0, 10000), currency=CURRENCY)
PLACE = record(latitude=real(-90, 90), longitude=real(-180, 180))
ADDRESS = record(
    ("unit",), street=text(24), unit=text(6), city=text(16), postcode=like("[0-9]{5}"), country=like("[A-Z]{2}")
)
PERSON = record(("email",), name=text(20), age=whole(0, 120), email=MAIL)
TREE = record(label=text(10), children=some(to("node"), 0, 2))
EXPRESSION = either(record(op=one_of("add", "mul"), left=to("term"), right=to("term")), record(value=whole(-99, 99)))

CALL_SCHEMAS: dict[str, Schema] = {
    "get_weather": record(("unit",), city=text(20), unit=one_of("celsius", "fahrenheit")),
    "forecast": record(place=PLACE, days=whole(1, 14), parts=some(one_of("rain", "wind", "sun"))),
    "search_web": record(("site",), query=text(40), site=written("hostname"), results=whole(1, 20)),
    "search_files": record(pattern=text(20), folders=some(text(16)), case_sensitive=YES_NO),
    "send_email": record(("cc",), to=some(MAIL, 1, 2), cc=some(MAIL, 0, 1), subject=text(30), body=text(60)),
    "create_event": record(("place",), title=text(24), start=TIME, minutes=whole(5, 480), place=text(16)),
    "move_event": record(id=written("uuid"), start=TIME),
    "set_alarm": record(
        time=like("([01][0-9]|2[0-3]):[0-5][0-9]"), days=some(one_of("mon", "tue", "wed", "thu", "fri"))
    ),
    "set_timer": record(("label",), seconds=whole(1, 86400), label=text(12)),
    "add_contact": record(person=PERSON, phone=like(r"\+[1-9][0-9]{7,12}"), tags=some(text(8), 0, 3)),
    "ship_to": record(address=ADDRESS, express=YES_NO),
    "quote": record(items=some(record(sku=like("[A-Z]{3}-[0-9]{4}"), count=whole(1, 99))), total=MONEY),
    "order": record(("note",), id=whole(1, 999999), lines=some(record(name=text(14), price=MONEY)), note=text(24)),
    "refund": record(order=whole(1, 999999), reason=one_of("damaged", "late", "wrong item"), amount=maybe(MONEY)),
    "pay": either(
        record(method=one_of("card"), number=like("[0-9]{16}"), expires=like("(0[1-9]|1[0-2])/[0-9]{2}")),
        record(method=one_of("transfer"), iban=like("[A-Z]{2}[0-9]{18}")),
    ),
    "convert_currency": record(amount=real(0, 1e6), source=CURRENCY, target=CURRENCY),
    "stock_price": record(("exchange",), symbol=like("[A-Z]{1,5}"), exchange=one_of("NYSE", "NASDAQ", "XETRA")),
    "trade": record(
        side=one_of("buy", "sell"), symbol=like("[A-Z]{1,5}"), shares=whole(1, 10000), limit=maybe(real(0, 5000))
    ),
    "book_flight": record(origin=like("[A-Z]{3}"), target=like("[A-Z]{3}"), date=DATE, seats=whole(1, 9)),
    "book_hotel": record(("stars",), city=text(16), arrival=DATE, nights=whole(1, 30), stars=whole(1, 5)),
    "book_table": record(name=text(16), at=TIME, guests=whole(1, 12), outside=YES_NO),
    "route": record(start=PLACE, stops=some(PLACE, 0, 2), end=PLACE, by=one_of("car", "bike", "foot")),
    "translate": record(text=text(60), source=like("[a-z]{2}"), target=like("[a-z]{2}(-[A-Z]{2})?")),
    "summarize": record(title=text(30), points=some(text(30), 2, 4)),
    "classify": record(label=one_of("spam", "work", "private", "news"), confidence=real(0, 1)),
    "sentiment": record(aspects=some(record(aspect=text(12), polarity=whole(-2, 2)))),
    "extract_people": {"type": "array", "items": PERSON, "minItems": 1, "maxItems": 2},
    "extract_dates": some(record(text=text(16), date=DATE), 1, 3),
    "entities": some(record(text=text(16), kind=one_of("person", "place", "time", "other"), start=whole(0, 9999))),
    "invoice": record(number=like("INV-[0-9]{6}"), issued=DATE, due=DATE, seller=ADDRESS, total=MONEY),
    "recipe": record(name=text(20), serves=whole(1, 12), parts=some(record(what=text(14), grams=whole(1, 2000)), 2, 4)),
    "workout": some(record(exercise=text(14), sets=whole(1, 6), repeats=whole(1, 30), rest=whole(10, 180))),
    "meal": record(
        calories=whole(0, 5000), nutrients=record(protein=real(0, 300), fat=real(0, 300), carbs=real(0, 900))
    ),
    "triage": record(urgency=whole(1, 5), symptoms=some(text(16)), follow_up=maybe(DATE)),
    "prescription": record(drug=text(18), milligrams=real(0.1, 2000), times=some(one_of("morning", "noon", "night"))),
    "light": record(("color",), room=text(12), on=YES_NO, level=whole(0, 100), color=like("#[0-9a-f]{6}")),
    "thermostat": record(room=text(12), target=real(5, 30), mode=one_of("heat", "cool", "off")),
    "play_music": record(("album",), artist=text(20), album=text(20), shuffle=YES_NO, volume=whole(0, 11)),
    "playlist": record(name=text(16), tracks=some(record(title=text(18), seconds=whole(30, 900)), 1, 3)),
    "run_code": record(("timeout",), language=one_of("python", "c++", "sql"), code=text(60), timeout=whole(1, 60)),
    "run_shell": record(command=text(30), arguments=some(text(12), 0, 3), environment=table(text(12))),
    "query_table": record(
        table=like("[a-z_]{3,12}"),
        columns=some(like("[a-z_]{2,10}")),
        where=some(
            record(column=like("[a-z_]{2,10}"), op=one_of("=", "<", ">"), value=either(text(10), whole(-999, 999)))
        ),
    ),
    "chart": record(
        kind=one_of("bar", "line"), series=some(record(name=text(10), points=some(real(-100, 100), 2, 4)), 1, 2)
    ),
    "http_request": record(
        ("body",), method=one_of("GET", "POST"), url=written("uri"), headers=table(text(12)), body=text(20)
    ),
    "open_port": record(address=written("ipv4"), port=whole(1, 65535), protocol=one_of("tcp", "udp")),
    "dns_record": either(
        record(type=one_of("A"), name=written("hostname"), value=written("ipv4")),
        record(type=one_of("MX"), name=written("hostname"), value=written("hostname"), priority=whole(0, 100)),
    ),
    "deploy": record(image=like("[a-z]{3,10}:[0-9]{1,2}\\.[0-9]{1,2}"), replicas=whole(1, 20), labels=table(text(10))),
    "cron": record(minute=whole(0, 59), hour=whole(0, 23), command=text(24)),
    "issue": record(("assignee",), title=text(40), labels=some(one_of("bug", "feature", "docs")), assignee=text(12)),
    "review": record(
        verdict=one_of("approve", "change"),
        comments=some(record(file=text(20), line=whole(1, 5000), text=text(30)), 0, 2),
    ),
    "commit": record(subject=text(50), files=some(text(20)), breaking=YES_NO),
    "version": record(version=like("[0-9]{1,2}\\.[0-9]{1,2}\\.[0-9]{1,2}"), released=maybe(DATE)),
    "quiz": some(record(question=text(40), options=some(text(12), 3, 3), answer=whole(0, 2)), 1, 2),
    "flashcard": record(front=text(30), back=text(30), deck=maybe(text(10))),
    "chess_move": record(
        ("promotes",), piece=one_of("K", "Q", "R", "B", "N", "P"), to=like("[a-h][1-8]"), promotes=one_of("Q", "N")
    ),
    "game_state": record(
        players=some(record(name=text(10), score=whole(0, 100), alive=YES_NO), 2, 2), turn=whole(1, 500)
    ),
    "tree": {**to("node"), "$defs": {"node": TREE}},
    "expression": {**to("term"), "$defs": {"term": EXPRESSION}},
    "tool_choice": either(
        record(tool=one_of("search"), query=text(20)),
        record(tool=one_of("answer"), text=text(40)),
        record(tool=one_of("stop")),
    ),
    "person_card": record(person=PERSON, home=to("address"), work=maybe(to("address")))
    | {"$defs": {"address": ADDRESS}},
}


WALKS = 3


@pytest.mark.alike(most=20)
@pytest.mark.parametrize("name", CALL_SCHEMAS)
def test_what_is_written_under_a_schema_of_a_function_is_valid(name: str) -> None:
    schema = CALL_SCHEMAS[name]
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    grammar = of_schema(schema)
    texts = [walk(grammar, random.Random(f"{name} {number}")) for number in range(WALKS)]
    for text in texts:
        assert text is not None  # all texts and lists have bounds
        validator.validate(json.loads(text))


def test_the_schemas_have_what_tools_ask_for() -> None:
    assert len(CALL_SCHEMAS) == 60
    found = set().union(*(keywords_of(schema) for schema in CALL_SCHEMAS.values()))
    assert found >= {
        *("$defs", "$ref", "additionalProperties", "anyOf", "enum", "format", "items", "maxItems", "maxLength"),
        *("maxProperties", "maximum", "minItems", "minimum", "pattern", "properties", "required", "type"),
    }
