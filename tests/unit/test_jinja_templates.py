"""Jinja templates that checkpoints bring along are rendered as ``transformers`` renders them."""

import json
from typing import Any

import pytest
import tokenizers
from transformers import PreTrainedTokenizerFast

from lmdeploy.templates.calls import parsed_arguments
from lmdeploy.templates.jinja import JinjaChatTemplate
from tests.support.published_templates import INDEX, stop_clocks

Template = str | dict[str, str]

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
USER = {"role": "user", "content": "Hi, 你好 <b>&'\" "}
CALL = {"id": "call00001", "type": "function", "function": {"name": "f", "arguments": '{"x": "ü"}'}}
CALLED = {"role": "assistant", "content": "", "tool_calls": [CALL]}
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one turn": [USER],
    "turns": [USER, {"role": "assistant", "content": " Hello!\n"}, {"role": "user", "content": "\nand now? "}],
    "system": [{"role": "system", "content": "Be brief."}, USER],
    "reasoning": [USER, {"role": "assistant", "content": "x", "reasoning": "why"}, USER],
    "empty keys": [USER, {"role": "assistant", "content": "x", "tool_calls": None, "name": None}, USER],
    "calls": [USER, CALLED, {"role": "tool", "content": "42", "name": "f", "tool_call_id": "call00001"}],
}
# The same calls for templates that know nothing of tools.
CALLS_AS_TEXTS = [
    USER,
    {"role": "assistant", "content": '<tool_call>\n{"name": "f", "arguments": {"x": "ü"}}\n</tool_call>'},
    {"role": "user", "content": "<tool_response>\n42\n</tool_response>"},
]
# Kimi K2's template shows results by ids that name the function: other servers' ids become such ones.
KIMI_ID = "functions.f:0"
PARAMETERS = {"type": "object", "properties": {"x": {"type": "string", "description": "ä"}}, "required": ["x"]}
TOOLS = [{"type": "function", "function": {"name": "f", "description": "Does.", "parameters": PARAMETERS}}]
# Constructs of the language, beyond those of the published templates.
CONSTRUCTS = {
    "blocks": "  {% for m in messages %}\n  {{ m.content }}\n  {% endfor %}\n",
    "loop controls": "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m.role }}{% endfor %}",
    "generation": "{% set x = 1 %}{% generation %}{% set x = 2 %} a {{ x }}{% endgeneration %}{{ x }}",
    "json": "{{ messages | tojson }}{{ {'b': 'ü<', 'a': 1} | tojson(indent=2, sort_keys=true, ensure_ascii=true) }}",
    "namespace": "{% set ns = namespace(self=1) %}{% for m in [2] %}{% set ns.self = m %}{% endfor %}{{ ns.self }}",
    "dict": "{{ dict(a=1).a }}{{ dict.fromkeys('ab', 0) }}{{ tools is none }}{{ documents is none }}",
    "clock": "{{ strftime_now('%Y-%m-%d %H:%M') }}",
    "special tokens": "{{ bos_token }}{{ eos_token }}{{ unk_token is defined }}",
}
REFUSED = {
    "raised": "{{ raise_exception('no') }}",
    "private attribute of a namespace": "{% set ns = namespace(a=1) %}{% set ns.__class__ = 2 %}",
    "private attribute given": "{{ namespace(_x=1) }}",
    "python": "{{ messages.__class__.__mro__ }}",
    "changed list": "{{ messages.append(1) }}",
    "dict is a function": "{{ dict.mro() }}",
}


@pytest.fixture(autouse=True)
def _one_day(monkeypatch: pytest.MonkeyPatch) -> None:
    stop_clocks(monkeypatch)


def by_transformers(template: Template, messages: list[dict[str, Any]], tools: Any, generation: bool) -> Any:
    """Return the prompt, or the kind of its refusal."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(tokenizers.models.WordLevel({"?": 0}, "?")),
        chat_template=template,
        **SPECIAL,
    )
    forms = [parsed_arguments(messages), messages]  # most read a call's arguments as an object, some as text
    if messages[0]["role"] == "system" and isinstance(messages[0]["content"], str):  # some refuse system prompts
        first = {**messages[1], "content": f"{messages[0]['content']}\n\n{messages[1]['content']}"}
        forms.append([first, *messages[2:]])
    for given in forms:
        try:
            return tokenizer.apply_chat_template(given, tools, tokenize=False, add_generation_prompt=generation)
        except Exception:  # whatever the template's author, or a message that it did not expect, led to
            continue
    return ValueError


def rendered(template: Template, messages: list[dict[str, Any]], tools: Any, generation: bool) -> Any:
    try:
        return JinjaChatTemplate(template, SPECIAL).render(messages, tools, generation)
    except ValueError:
        return ValueError


@pytest.mark.parametrize("name", INDEX)
def test_a_published_template_is_rendered_as_transformers_does_and_takes_tools(name: str) -> None:
    template = INDEX[name]["template"]
    for conversation, messages in CONVERSATIONS.items():
        shown = CALLS_AS_TEXTS if conversation == "calls" and "tool" not in template else messages
        if name == "kimi_k2":
            shown = json.loads(json.dumps(messages).replace("call00001", KIMI_ID))
        for generation in (True, False):
            assert rendered(template, messages, None, generation) == by_transformers(template, shown, None, generation)
        if "tools" in template and name != "glm4":  # GLM-4's reads those of a message
            assert rendered(template, messages, TOOLS, True) == by_transformers(template, shown, TOOLS, True)
    prompt = JinjaChatTemplate(template, SPECIAL).render(CONVERSATIONS["calls"], TOOLS)
    for reported in ("Does.", "42") if name == "smollm3" else ("Does.", "ü", "42"):  # SmolLM3's writes no calls
        assert reported in prompt


@pytest.mark.parametrize("construct", CONSTRUCTS)
def test_the_language_of_templates_is_that_of_transformers(construct: str) -> None:
    messages = CONVERSATIONS["turns"]
    expected = by_transformers(CONSTRUCTS[construct], messages, None, True)
    assert isinstance(expected, str)
    assert rendered(CONSTRUCTS[construct], messages, None, True) == expected


@pytest.mark.parametrize("construct", REFUSED)
def test_a_template_is_kept_from_what_is_not_its_own(construct: str) -> None:
    assert by_transformers(REFUSED[construct], [USER], None, True) is ValueError
    with pytest.raises(ValueError, match="refused by the model's chat template"):
        JinjaChatTemplate(REFUSED[construct], SPECIAL).render([USER])


def test_of_several_templates_the_one_for_tools_is_for_tools() -> None:
    templates = {"default": "plain", "tool_use": "with {{ tools | tojson }}"}
    for tools in (None, TOOLS):
        assert rendered(templates, [USER], tools, True) == by_transformers(templates, [USER], tools, True)
    assert JinjaChatTemplate(templates).render([USER], TOOLS) == f"with {json.dumps(TOOLS, ensure_ascii=False)}"
    with pytest.raises(ValueError, match="no default, only other, tool_use"):
        JinjaChatTemplate({"other": "x", "tool_use": "y"}).render([USER])
