"""Questions that functions answer, or do not, in the kinds of the Berkeley Function Calling Leaderboard.

simple: one function is offered, and is the one to call; multiple: one of several is; parallel: it is to be called for
each of several things; irrelevance: none is of any use. The cases are our own.
"""

from dataclasses import dataclass
from typing import Any

Calls = tuple[tuple[str, dict[str, Any]], ...]


@dataclass(frozen=True)
class Case:
    """A question.

    Attributes
    ----------
    kind : str
        simple, multiple, parallel or irrelevance.
    question : str
        What the user asks.
    tools : tuple of str
        The names of the functions on offer.
    calls : tuple
        The right calls; none: the model is to answer in words.
    """

    kind: str
    question: str
    tools: tuple[str, ...]
    calls: Calls = ()


def _text(description: str, longest: int = 24) -> dict[str, Any]:
    return {"type": "string", "description": description, "maxLength": longest}


def _function(name: str, description: str, **properties: dict[str, Any]) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters, "strict": True},
    }


_UNIT = {"type": "string", "enum": ["celsius", "fahrenheit"]}
_NUMBER = {"type": "integer", "minimum": -9999, "maximum": 9999}  # a small model may write digits forever
TOOLS: dict[str, dict[str, Any]] = {
    "get_weather": _function("get_weather", "The weather of a city now.", city=_text("The city."), unit=_UNIT),
    "add": _function("add", "Add two numbers.", a=_NUMBER, b=_NUMBER),
    "multiply": _function("multiply", "Multiply two numbers.", a=_NUMBER, b=_NUMBER),
    "get_stock_price": _function("get_stock_price", "The price of a share.", symbol=_text("As AAPL.", 6)),
    "translate": _function(
        "translate",
        "Translate a word.",
        word=_text("The word."),
        language={"type": "string", "enum": ["French", "German", "Spanish"]},
    ),
    "set_alarm": _function(
        "set_alarm",
        "Set an alarm.",
        hour={"enum": list(range(24))},
        days={"type": "array", "items": {"enum": ["Monday", "Friday", "Sunday"]}, "minItems": 1, "maxItems": 3},
        is_loud={"type": "boolean"},
    ),
    "send_message": _function(
        "send_message",
        "Send a message to a person.",
        to={
            "type": "object",
            "properties": {"name": _text("Of the person."), "is_friend": {"type": "boolean"}},
            "required": ["name", "is_friend"],
            "additionalProperties": False,
        },
        text=_text("What to say.", 40),
    ),
}

CASES = (
    Case(
        "simple",
        "What is the weather in Boston, in celsius?",
        ("get_weather",),
        (("get_weather", {"city": "Boston", "unit": "celsius"}),),
    ),
    Case("simple", "Add 3 and 5.", ("add",), (("add", {"a": 3, "b": 5}),)),
    Case(
        "simple",
        "What is a share of AAPL worth?",
        ("get_stock_price",),
        (("get_stock_price", {"symbol": "AAPL"}),),
    ),
    Case(
        "simple",
        "Translate the word house into French.",
        ("translate",),
        (("translate", {"word": "house", "language": "French"}),),
    ),
    Case(
        "simple",
        "Wake me up at 7 on Monday with a loud alarm.",
        ("set_alarm",),
        (("set_alarm", {"hour": 7, "days": ["Monday"], "is_loud": True}),),
    ),
    Case(
        "simple",
        "Report my friend Ann: see you soon",
        ("send_message",),
        (("send_message", {"to": {"name": "Ann", "is_friend": True}, "text": "see you soon"}),),
    ),
    Case(
        "multiple",
        "Multiply 6 by 7.",
        ("add", "multiply", "translate"),
        (("multiply", {"a": 6, "b": 7}),),
    ),
    Case(
        "multiple",
        "How is the weather in Rome, in fahrenheit?",
        ("get_stock_price", "get_weather", "add"),
        (("get_weather", {"city": "Rome", "unit": "fahrenheit"}),),
    ),
    Case(
        "multiple",
        "Translate dog into German.",
        ("send_message", "set_alarm", "translate"),
        (("translate", {"word": "dog", "language": "German"}),),
    ),
    Case(
        "multiple",
        "What is the price of MSFT?",
        ("get_weather", "get_stock_price"),
        (("get_stock_price", {"symbol": "MSFT"}),),
    ),
    Case(
        "parallel",
        "What is the weather in Paris and in Oslo, in celsius?",
        ("get_weather",),
        (
            ("get_weather", {"city": "Paris", "unit": "celsius"}),
            ("get_weather", {"city": "Oslo", "unit": "celsius"}),
        ),
    ),
    Case(
        "parallel",
        "Add 1 and 2, and add 3 and 4.",
        ("add", "multiply"),
        (("add", {"a": 1, "b": 2}), ("add", {"a": 3, "b": 4})),
    ),
    Case(
        "parallel",
        "Translate cat into French and into Spanish.",
        ("translate",),
        (
            ("translate", {"word": "cat", "language": "French"}),
            ("translate", {"word": "cat", "language": "Spanish"}),
        ),
    ),
    Case("irrelevance", "Who wrote Hamlet?", ("get_weather", "add")),
    Case("irrelevance", "What is the capital of France?", ("get_stock_price",)),
    Case("irrelevance", "Write a short poem about the sea.", ("translate", "set_alarm")),
)
