"""The formats, and the names they go by: those of vLLM's ``--tool-call-parser``, of SGLang's, and some of our own.

Each says where it is taken from. ``tests/data/templates.jsonl`` holds the published templates under the same names.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from lmdeploy.checks import parser_name
from lmdeploy.templates.tool_call_formats.headed import EnvironmentCode, HeadedArguments, NamedArguments
from lmdeploy.templates.tool_call_formats.objects import BareObjects, MarkedObjects, ObjectList
from lmdeploy.templates.tool_call_formats.python import PythonLines, PythonList
from lmdeploy.templates.tool_call_formats.quoted import QuotedArguments
from lmdeploy.templates.tool_call_formats.tagged import TaggedArguments

ToolCallFormat = (
    MarkedObjects
    | BareObjects
    | ObjectList
    | PythonList
    | PythonLines
    | NamedArguments
    | HeadedArguments
    | TaggedArguments
    | QuotedArguments
    | EnvironmentCode
)

_NAME = r"(?P<name>[A-Za-z0-9_.-]{1,128})"

# ---- JSON objects ----

# Qwen2.5's and Qwen3's published templates; Hermes 2 and 3, SmolLM3, Granite 4 and ERNIE 4.5 write the same.
QWEN = MarkedObjects("<tool_call>", "</tool_call>")
# For models whose templates have none of their own: the most widespread one.
GENERIC = QWEN
# InternLM2's description of its chat format (chat/chat_format.md of the InternLM repository).
INTERNLM2 = MarkedObjects(
    "<|action_start|><|plugin|>",
    "<|action_end|>",
    after="",
    separator="",
    arguments="parameters",
    other_openings=("<|action_start|> <|plugin|>",),
)
# Mistral's published templates up to the third version of its tokenizer.
MISTRAL = ObjectList("[TOOL_CALLS]", identity="id")
# Granite 3's published template; the second tag is what vLLM's parser reads besides.
GRANITE = ObjectList("<|tool_call|>")
# As Phi-4-mini's model card has it, and as it also answers (vLLM's phi4_mini_json).
PHI4 = ObjectList("<|tool_call|>", "<|/tool_call|>", other_openings=("functools",))
# Command R and R+; and Command R7B and A, whose tags are tokens. Cohere's published templates for tools.
COMMAND_R = ObjectList("Action: ```json", "```", name="tool_name", arguments="parameters", indent=4)
COMMAND_R7B = ObjectList(
    "<|START_ACTION|>", "<|END_ACTION|>", name="tool_name", arguments="parameters", identity="tool_call_id"
)
# vLLM's parsers hunyuan_a13b and jamba.
HUNYUAN = ObjectList("<tool_calls>", "</tool_calls>")
# vLLM's parser xlam: a list alone, or in a block of code.
XLAM = ObjectList("```json", "```", is_bare=True)
# Llama 3.1's published template.
LLAMA31 = BareObjects()

# ---- a head, then JSON ----

# GLM-4's published template, and the code alongside it.
GLM4 = NamedArguments("<|assistant|>", "\n")
# A second format of Llama 3.1: the prompt names neither, but it was trained on both (Meta's prompt formats).
LLAMA31_FUNCTION = NamedArguments("<function=", ">", "</function>")
LLAMA31_PYTHON_TAG = EnvironmentCode("<|python_tag|>")
# The published templates of V3 and R1, which fence the arguments; V3.1's leaves the kind of call and the fence out.
_DEEPSEEK_CALL = rf"\s*(?:function<｜tool▁sep｜>{_NAME}\s*```json|{_NAME.replace('name', 'bare')}<｜tool▁sep｜>)\s*"
_DEEPSEEK_OPENINGS = ("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>", "<｜tool▁call▁begin｜>")
_DEEPSEEK_CLOSINGS = ("```<｜tool▁call▁end｜>", "<｜tool▁call▁end｜>")
DEEPSEEK_V3 = HeadedArguments(
    head="<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n",
    closing="\n```<｜tool▁call▁end｜>",
    openings=_DEEPSEEK_OPENINGS,
    pattern=_DEEPSEEK_CALL,
    closings=_DEEPSEEK_CLOSINGS,
    before="<｜tool▁calls▁begin｜>",
    separator="\n",
    after="<｜tool▁calls▁end｜>",
)
DEEPSEEK_V31 = HeadedArguments(
    head="<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>",
    closing="<｜tool▁call▁end｜>",
    openings=_DEEPSEEK_OPENINGS,
    pattern=_DEEPSEEK_CALL,
    closings=_DEEPSEEK_CLOSINGS,
    before="<｜tool▁calls▁begin｜>",
    after="<｜tool▁calls▁end｜>",
)
# Kimi K2's published templates; the second spelling of the section's tag is read by vLLM's parser.
KIMI_K2 = HeadedArguments(
    head="<|tool_call_begin|>functions.{name}:{number}<|tool_call_argument_begin|>",
    closing="<|tool_call_end|>",
    openings=("<|tool_calls_section_begin|>", "<|tool_call_section_begin|>", "<|tool_call_begin|>"),
    pattern=rf"\s*(?:<\|tool_call_begin\|>)?\s*(?:functions\.)?{_NAME}(?::\d+)?\s*<\|tool_call_argument_begin\|>\s*",
    closings=("<|tool_call_end|>",),
    before="<|tool_calls_section_begin|>",
    after="<|tool_calls_section_end|>",
    other_afters=("<|tool_call_section_end|>",),
)
# Mistral's published templates from the eleventh version of its tokenizer on: Small 3.2's has ids, Ministral 3's not.
MISTRAL_NAMED = HeadedArguments(
    head="[TOOL_CALLS]{name}[ARGS]",
    closing="",
    openings=("[TOOL_CALLS]",),
    pattern=rf"\s*{_NAME}\s*(?:\[CALL_ID\]\s*\w+\s*)?(?:\[ARGS\])?\s*",
    closings=(),
)
MISTRAL_IDENTIFIED = replace(MISTRAL_NAMED, head="[TOOL_CALLS]{name}[CALL_ID]{id}[ARGS]")
# gpt-oss: OpenAI's description of harmony, and the published template. Of the header's parts the model may write the
# recipient first, or the channel. Prompts end with the role.
_HARMONY_CHANNELS = ("<|channel|>commentary", "<|channel|>analysis")
GPT_OSS = HeadedArguments(
    head="<|start|>assistant to=functions.{name}<|channel|>commentary json<|message|>",
    closing="<|call|>",
    openings=(
        "<|start|>assistant to=functions.",
        *(f"<|start|>assistant{channel} to=functions." for channel in _HARMONY_CHANNELS),
        *(f"{channel} to=functions." for channel in _HARMONY_CHANNELS),
        "to=functions.",
    ),
    pattern=rf"{_NAME}\s*(?:<\|channel\|>(?:commentary|analysis)\s*)?(?:<\|constrain\|>)?\s*(?:json)?\s*<\|message\|>\s*",
    closings=("<|call|>", "<|end|>"),
    response_head="<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>",
)

# ---- arguments between tags of their own ----

# Qwen3-Coder's and Qwen3.5's published templates.
QWEN3_CODER = TaggedArguments(
    call="<function=",
    name_end=">\n",
    key="<parameter=",
    value=">\n",
    value_end="\n</parameter>\n",
    call_end="</function>",
    section=("<tool_call>\n", "\n</tool_call>"),
    is_section_per_call=True,
    separator="\n",
    pads=True,
    words="python",
)
# Seed-OSS's published template.
SEED_OSS = TaggedArguments(
    call="<function=",
    name_end=">\n",
    key="<parameter=",
    value=">",
    value_end="</parameter>\n",
    call_end="</function>",
    section=("<seed:tool_call>\n", "\n</seed:tool_call>"),
    is_section_per_call=True,
    separator="\n",
    words="python all",
)
# GLM-4.5's and 4.6's published template; and 4.7's, without line ends.
GLM45 = TaggedArguments(
    call="<tool_call>",
    name_end="\n",
    key="<arg_key>",
    value="</arg_key>\n<arg_value>",
    value_end="</arg_value>\n",
    call_end="</tool_call>",
    separator="\n",
    untyped="json",
)
GLM47 = TaggedArguments(
    call="<tool_call>",
    name_end="",
    key="<arg_key>",
    value="</arg_key><arg_value>",
    value_end="</arg_value>",
    call_end="</tool_call>",
    untyped="json",
)
# MiniMax M2's published template.
MINIMAX_M2 = TaggedArguments(
    call='<invoke name="',
    name_end='">\n',
    key='<parameter name="',
    value='">',
    value_end="</parameter>\n",
    call_end="</invoke>\n",
    section=("<minimax:tool_call>\n", "</minimax:tool_call>"),
)
# The encoding that DeepSeek published with V3.2 (as code; llama.cpp has it as a template); V4 names the section again.
DEEPSEEK_V32 = TaggedArguments(
    call='<｜DSML｜invoke name="',
    name_end='">\n',
    key='<｜DSML｜parameter name="',
    value='" string="{is_text}">',
    value_end="</｜DSML｜parameter>\n",
    call_end="</｜DSML｜invoke>\n",
    section=("<｜DSML｜function_calls>\n", "</｜DSML｜function_calls>"),
    untyped="json",
)
DEEPSEEK_V4 = replace(DEEPSEEK_V32, section=("<｜DSML｜tool_calls>\n", "</｜DSML｜tool_calls>"))

# ---- others ----

# Gemma 4's published template; and FunctionGemma's description of its format.
GEMMA4 = QuotedArguments("<|tool_call>", "<tool_call|>", '<|"|>')
FUNCTION_GEMMA = QuotedArguments("<start_function_call>", "<end_function_call>", "<escape>")
# Llama 3.2 where its prompt says so, and Llama 4, which has the tags (Meta's prompt formats).
PYTHONIC = PythonList("<|python_start|>", "<|python_end|>")
# LFM2's published template.
LFM2 = PythonList("<|tool_call_start|>", "<|tool_call_end|>", is_marked=True, has_json=True)
# vLLM's parser olmo3.
OLMO3 = PythonLines("<function_calls>", "</function_calls>")


@dataclass(frozen=True, slots=True)
class NamedFormat:
    """A named tool call format."""

    formats: tuple[ToolCallFormat, ...]  # the one that is written first; all are read
    signs: tuple[tuple[str, ...], ...] = ()  # a template that holds all texts of one of them writes calls so
    in_auto: bool = True  # whether it is read, too, where no format is known: not where it has no tag, or a common one


_NAMED = {
    # In this order templates are searched for their signs.
    "gemma4": NamedFormat((GEMMA4,), (("<|tool_call>call:",),)),
    "functiongemma": NamedFormat((FUNCTION_GEMMA,), (("<start_function_call>",),)),
    "kimi_k2": NamedFormat((KIMI_K2,), (("<|tool_call_argument_begin|>",),)),
    "minimax_m2": NamedFormat((MINIMAX_M2,), (("<minimax:tool_call>",),)),
    "seed_oss": NamedFormat((SEED_OSS,), (("<seed:tool_call>",),)),
    "deepseek_v32": NamedFormat((DEEPSEEK_V32, DEEPSEEK_V4), (("｜DSML｜", "function_calls>"),)),
    "deepseek_v4": NamedFormat((DEEPSEEK_V4, DEEPSEEK_V32), (("｜DSML｜", "tool_calls>"),)),
    "deepseek_v3": NamedFormat((DEEPSEEK_V3,), (("<｜tool▁sep｜>", "```json"),)),
    "deepseek_v31": NamedFormat((DEEPSEEK_V31,), (("<｜tool▁sep｜>",),)),
    "qwen3_coder": NamedFormat((QWEN3_CODER,), (("<tool_call>", "<function=", "<parameter="),)),
    "glm47": NamedFormat((GLM47, GLM45), (("}</arg_key><arg_value>",),)),
    "glm45": NamedFormat((GLM45, GLM47), (("<arg_key>",),)),
    "lfm2": NamedFormat((LFM2,), (("<|tool_call_start|>",), ("<|tool_list_start|>",))),
    "openai": NamedFormat((GPT_OSS,), (("<|channel|>commentary", "functions."),)),
    "llama4_pythonic": NamedFormat((PYTHONIC,), (("<|python_start|>",),)),
    "olmo3": NamedFormat((OLMO3,), (("<function_calls>",),)),
    "hunyuan_a13b": NamedFormat((HUNYUAN,), (("<tool_calls>",),)),
    "internlm": NamedFormat((INTERNLM2,), (("<|plugin|>",),)),
    "command-r": NamedFormat((COMMAND_R, COMMAND_R7B), (("Action:", "```json", "tool_name"),)),
    "cohere_command3": NamedFormat((COMMAND_R7B, COMMAND_R), (("<|START_ACTION|>",),)),
    "phi4_mini_json": NamedFormat((PHI4,), (("<|/tool_call|>",), ("functools",))),
    "granite": NamedFormat((GRANITE, QWEN), (("<|tool_call|>",),)),
    "mistral-v11": NamedFormat((MISTRAL_IDENTIFIED, MISTRAL), (("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),)),
    "mistral": NamedFormat((MISTRAL_NAMED, MISTRAL), (("[TOOL_CALLS]", "[ARGS]"),)),
    "mistral-v3": NamedFormat((MISTRAL, MISTRAL_NAMED), (("[TOOL_CALLS]",),)),
    "hermes": NamedFormat((QWEN,), (("<tool_call>",),)),
    "glm4": NamedFormat((GLM4,), (("<|observation|>", "metadata"),)),
    "llama3_json": NamedFormat((LLAMA31, LLAMA31_FUNCTION, LLAMA31_PYTHON_TAG), (('"parameters": dictionary',),)),
    "pythonic": NamedFormat((PYTHONIC,)),
    "xlam": NamedFormat((XLAM, QWEN), in_auto=False),
}
_ALIASES = {
    # vLLM's
    "ernie45": "hermes",
    "granite4": "hermes",
    "jamba": "hunyuan_a13b",
    "llama4_json": "llama3_json",
    "mimo": "qwen3_coder",
    "qwen3_xml": "qwen3_coder",
    "step3p5": "qwen3_coder",
    # SGLang's
    "glm": "glm45",
    "gpt-oss": "openai",
    "hunyuan": "hunyuan_a13b",
    "interns1": "internlm",
    "llama3": "llama3_json",
    "qwen": "hermes",
    "qwen25": "hermes",
    # ours
    "phi-4": "phi4_mini_json",
}
TOOL_CALL_FORMATS: dict[str, NamedFormat] = _NAMED | {alias: _NAMED[name] for alias, name in _ALIASES.items()}
PARSERS = ("auto", "none", *sorted(TOOL_CALL_FORMATS))
"""Values of ``--tool-call-parser``."""


def tool_call_formats_of(name: str) -> tuple[ToolCallFormat, ...]:
    """Return the formats in which calls are parsed; raise `ValueError` if there is no such parser; lists them.

    ``name``: one of `PARSERS`. ``auto``: all that have tags, which distinguish them; ``none``: nothing.
    """
    name = parser_name("tool_call_parser", name, PARSERS)
    if name == "none":
        return ()
    if name == "auto":
        read = (form for named in _NAMED.values() if named.in_auto for form in named.formats)
        return tuple(dict.fromkeys(read))
    return TOOL_CALL_FORMATS[name].formats


def tool_call_format_of(name: str, own: ToolCallFormat | None) -> ToolCallFormat | None:
    """Return the format of a model's calls that can be enforced; None: it is not known.

    Raises `ValueError` if there is no such parser; lists them. ``name``: one of `PARSERS`. ``own``: what its chat
    template says.
    """
    name = parser_name("tool_call_parser", name, PARSERS)
    return own if name in ("auto", "none") else TOOL_CALL_FORMATS[name].formats[0]


def format_of_template(mentions: Callable[[str], bool]) -> str | None:
    """Return the name of the format that a chat template writes calls in; None: none that is known.

    ``mentions``: whether a text is in the template.
    """
    for name, named in _NAMED.items():
        if any(all(mentions(text) for text in sign) for sign in named.signs):
            return name
    return None
