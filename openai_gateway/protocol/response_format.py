"""``response_format`` of a request."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from openai_gateway.protocol.fields import AnyText, Closed, JsonObject, Text


def schema_format(name: str, schema: dict[str, Any] | None, **options: str | None) -> dict[str, Any]:
    """Return the engine's form of a schema; without one any JSON object will do."""
    if schema is None:
        return {"type": "json_object"}
    given = {option: value for option, value in options.items() if value is not None}
    return {"type": "json_schema", "json_schema": {"name": name, "schema": schema} | given}


class TextFormat(Closed):
    """Free text."""

    holder: ClassVar = "type"

    type: Literal["text"]

    def for_engine(self) -> dict[str, Any] | None:
        """Return the engine's form; None: no constraint."""
        return None


class JsonFormat(Closed):
    """Any JSON object, or in llama.cpp's spelling one that a schema allows."""

    holder: ClassVar = "schema"

    type: Literal["json_object"]
    schema_: JsonObject | None = Field(None, alias="schema")

    def for_engine(self) -> dict[str, Any] | None:
        """Return the engine's form."""
        return schema_format("response", self.schema_)


class JsonSchema(Closed):
    """A named JSON schema."""

    name: Text
    description: AnyText | None = None
    schema_: JsonObject | None = Field(None, alias="schema")
    strict: bool | None = None
    property_order: Literal["schema", "any"] | None = Field(
        None, description="Members of objects come in the order of the schema, or in any (LMDeploy's addition)."
    )
    additional: Literal["schema", "any"] | None = Field(
        None, description="Further members and items come where the schema speaks of them, or anywhere (LMDeploy's)."
    )


class JsonSchemaFormat(Closed):
    """JSON that a schema allows."""

    holder: ClassVar = "json_schema.schema"

    type: Literal["json_schema"]
    json_schema: JsonSchema

    def for_engine(self) -> dict[str, Any] | None:
        """Return the engine's form."""
        given = self.json_schema
        options = {"property_order": given.property_order, "additional": given.additional}
        return schema_format(given.name, given.schema_, **options)


class RegexFormat(Closed):
    """Text that a regular expression matches (LMDeploy's addition)."""

    holder: ClassVar = "regex_schema"

    type: Literal["regex_schema"]
    regex_schema: Text

    def for_engine(self) -> dict[str, Any] | None:
        """Return the engine's form."""
        return {"type": "regex_schema", "regex_schema": self.regex_schema}


ResponseFormat = Annotated[TextFormat | JsonFormat | JsonSchemaFormat | RegexFormat, Field(discriminator="type")]
