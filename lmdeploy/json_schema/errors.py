"""Refusals of schemas, and the budget of work for one."""

from __future__ import annotations

_FREE = 2_000  # steps of any schema


class SchemaError(ValueError):
    """A schema that cannot be enforced: the JSON pointer (RFC 6901) of the keyword from its root, and why."""

    def __init__(self, pointer: str, reason: str) -> None:
        super().__init__(f"#{pointer}: {reason}")
        self.pointer = pointer
        self.reason = reason


class Budget:
    """Counts steps of a few microseconds, so that no schema takes longer than its size allows."""

    def __init__(self, characters: int) -> None:
        self._left: float = _FREE + characters // 2

    def spend(self, steps: float, pointer: str) -> None:
        """Count `steps` of work on the keyword at `pointer`; raise `SchemaError` where nothing is left."""
        self._left -= steps
        if self._left < 0:
            raise SchemaError(pointer, "the schema combines too many alternatives here; make it smaller")
