"""``response_format``: what a response has to look like."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from openai_gateway.protocol.fields import AnyText, JsonObject, Strict, Text


class TextFormat(Strict):
    """Free text."""

    holder: ClassVar = "type"

    type: Literal["text"]

    def for_engine(self) -> dict[str, Any] | None:
        """Return the engine's form; None: no constraint."""
        return None


class JsonFormat(Strict):
    """Any JSON object."""

    holder: ClassVar = "type"

    type: Literal["json_object"]

    def for_engine(self) -> dict[str, Any] | None:
        """Return the engine's form."""
        return {"type": "json_object"}


class JsonSchema(Strict):
    """A named JSON schema."""

    name: Text
    description: AnyText | None = None
    schema_: JsonObject | None = Field(None, alias="schema")
    strict: bool | None = None


class JsonSchemaFormat(Strict):
    """JSON that a schema allows."""

    holder: ClassVar = "json_schema.schema"

    type: Literal["json_schema"]
    json_schema: JsonSchema

    def for_engine(self) -> dict[str, Any] | None:
        """Return the engine's form; without a schema any JSON object will do."""
        if self.json_schema.schema_ is None:
            return {"type": "json_object"}
        return {
            "type": "json_schema",
            "json_schema": {"name": self.json_schema.name, "schema": self.json_schema.schema_},
        }


class RegexFormat(Strict):
    """Text that a regular expression matches (LMDeploy's addition)."""

    holder: ClassVar = "regex_schema"

    type: Literal["regex_schema"]
    regex_schema: Text

    def for_engine(self) -> dict[str, Any] | None:
        """Return the engine's form."""
        return {"type": "regex_schema", "regex_schema": self.regex_schema}


ResponseFormat = Annotated[TextFormat | JsonFormat | JsonSchemaFormat | RegexFormat, Field(discriminator="type")]
