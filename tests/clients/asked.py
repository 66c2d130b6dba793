"""What programs of clients ask for: an object, and a call of a function."""

from pydantic import BaseModel


class Person(BaseModel):
    """Somebody."""

    name: str
    age: int


def get_weather(location: str) -> str:
    """Report the weather."""
    return location
