"""Tool-call formats: one description a format, from which writer, reader and grammar are derived.

Templates write with a format's ``write``, the gateway reads by it (``openai_gateway.tools``), and its ``grammar`` holds
a model to it.
"""

from lmdeploy.templates.tool_call_formats.catalogue import (
    GENERIC,
    PARSERS,
    TOOL_CALL_FORMATS,
    NamedFormat,
    ToolCallFormat,
    format_of_template,
    tool_call_format_of,
    tool_call_formats_of,
)
from lmdeploy.templates.tool_call_formats.headed import EnvironmentCode, HeadedArguments, NamedArguments
from lmdeploy.templates.tool_call_formats.objects import BareObjects, MarkedObjects, ObjectList
from lmdeploy.templates.tool_call_formats.python import PythonLines, PythonList
from lmdeploy.templates.tool_call_formats.quoted import QuotedArguments
from lmdeploy.templates.tool_call_formats.tagged import TaggedArguments

__all__ = [
    "GENERIC",
    "PARSERS",
    "TOOL_CALL_FORMATS",
    "BareObjects",
    "EnvironmentCode",
    "HeadedArguments",
    "MarkedObjects",
    "NamedArguments",
    "NamedFormat",
    "ObjectList",
    "PythonLines",
    "PythonList",
    "QuotedArguments",
    "TaggedArguments",
    "ToolCallFormat",
    "format_of_template",
    "tool_call_format_of",
    "tool_call_formats_of",
]
