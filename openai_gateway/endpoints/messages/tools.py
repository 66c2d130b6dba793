"""``tools`` of ``POST /v1/messages``: functions, and tools of Anthropic's that the client runs."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import model_validator

from openai_gateway.protocol.fields import AnyText, FieldError, JsonObject, Strict
from openai_gateway.protocol.tools import Function, FunctionName, Tool, require_enforced

_TEXT, _NUMBER = {"type": "string"}, {"type": "integer"}
_RANGE = {"type": "array", "items": _NUMBER, "description": "First and last line to view, from 1; -1: to the end."}
_EDITOR = "View and change text files."
_MEMORY = "Read and write files under /memories, which outlast the conversation."
_PARAMETERS: dict[str, Any] = {
    "command": _TEXT,
    "restart": {"type": "boolean", "description": "true: restart the shell instead of running the command."},
    "path": _TEXT | {"description": "The file or directory."},
    "view_range": _RANGE,
    "file_text": _TEXT | {"description": "create: the content of the file."},
    "old_str": _TEXT | {"description": "str_replace: the text to replace, exactly as it is in the file, and once."},
    "new_str": _TEXT | {"description": "str_replace: the text in its place."},
    "insert_line": _NUMBER | {"description": "insert: the line after which the text goes; 0: the beginning."},
    "insert_text": _TEXT | {"description": "insert: the text."},
    "old_path": _TEXT | {"description": "rename: the present path."},
    "new_path": _TEXT | {"description": "rename: the new path."},
}
_OF_FILES = ("path", "view_range", "file_text", "old_str", "new_str", "insert_line")
_EDITS = ("view", "create", "str_replace", "insert")


def _function(description: str, commands: tuple[str, ...], names: tuple[str, ...], *required: str) -> Function:
    command = _TEXT | ({"enum": list(commands)} if commands else {})
    properties = {"command": command} | {name: _PARAMETERS[name] for name in names}
    schema = {"type": "object", "properties": properties, "required": ["command", *required]}
    return Function(name="-", description=description, parameters=schema)


_BASH = _function("Run a command in a shell that keeps its state between calls.", (), ("restart",))
_OLD_EDITOR = _function(f"{_EDITOR} insert takes its text as new_str.", (*_EDITS, "undo_edit"), _OF_FILES, "path")
# Parameters as Anthropic publishes them for what its models are trained to call.
_CLIENT_TOOLS = {
    "bash_20241022": _BASH,
    "bash_20250124": _BASH,
    "text_editor_20241022": _OLD_EDITOR,
    "text_editor_20250124": _OLD_EDITOR,
    "text_editor_20250429": _function(f"{_EDITOR} insert takes its text as new_str.", _EDITS, _OF_FILES, "path"),
    "text_editor_20250728": _function(_EDITOR, _EDITS, (*_OF_FILES, "insert_text"), "path"),
    "memory_20250818": _function(
        _MEMORY, (*_EDITS, "delete", "rename"), (*_OF_FILES, "insert_text", "old_path", "new_path")
    ),
}


class ToolParam(Strict):
    """A function the model may call, or a tool that clients of Anthropic's API know how to run."""

    type: AnyText | None = None
    name: FunctionName
    description: AnyText | None = None
    input_schema: JsonObject | None = None
    strict: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _is_run_by_the_client(cls, fields: object) -> object:
        kind = fields.get("type") if isinstance(fields, dict) else None
        if isinstance(kind, str) and kind != "custom" and kind not in _CLIENT_TOOLS:
            known = ", ".join(_CLIENT_TOOLS)
            message = f"tools of type {kind[:64]} are not run by this server; offer functions, or one of {known}"
            raise FieldError("type", message)
        return fields

    @model_validator(mode="after")
    def _keeps_to_its_schema(self) -> ToolParam:
        if self.type not in _CLIENT_TOOLS and self.input_schema is None:
            raise FieldError("input_schema", "input_schema is required")
        if self.strict:
            require_enforced("input_schema", self.as_tool().function.full_schema)
        return self

    def as_tool(self) -> Tool:
        """Return the tool in the form of chat completions."""
        known = _CLIENT_TOOLS.get(self.type or "")
        described = (known.description, known.parameters) if known else (self.description, self.input_schema)
        # Strictness is checked under the field's own name.
        function = Function.model_construct(
            name=self.name, description=described[0], parameters=described[1], strict=self.strict
        )
        return Tool(type="function", function=function)


class ToolChoice(Strict):
    """Which tools are to be called."""

    type: Literal["auto", "any", "tool", "none"]
    name: FunctionName | None = None
    disable_parallel_tool_use: bool | None = None
