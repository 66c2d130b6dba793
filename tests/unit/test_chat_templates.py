"""A conversation becomes the prompt the model was trained on."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

import lmdeploy.model
from lmdeploy.model import MODELS, BaseChatTemplate, ChatTemplateConfig, Llama3, chat_template_for

USER = {"role": "user", "content": "Hi, 你好"}
MULTI_TURN = [USER, {"role": "assistant", "content": "Hello!"}, {"role": "user", "content": "and now?"}]
WITH_SYSTEM = [{"role": "system", "content": "Be brief."}, *MULTI_TURN]
CONVERSATIONS = {
    "one turn": [USER],
    "turns": MULTI_TURN,
    "system": WITH_SYSTEM,
    "empty system": [{"role": "system", "content": ""}, USER],
}


@pytest.mark.parametrize("conversation", CONVERSATIONS)
def test_the_models_own_template_is_the_default(default_model_dir: Path, conversation: str) -> None:
    messages = CONVERSATIONS[conversation]
    reference = AutoTokenizer.from_pretrained(default_model_dir)
    template = chat_template_for(str(default_model_dir))
    for generation in (True, False):
        expected = reference.apply_chat_template(messages, tokenize=False, add_generation_prompt=generation)
        assert template.render(messages, add_generation_prompt=generation) == expected
    assert template.add_bos is False


TALKING = [name for name in MODELS.names() if MODELS.get(name)().capability == "chat"]


@pytest.mark.parametrize("name", ["", *TALKING])
def test_a_conversation_in_pieces_is_the_whole_prompt_and_ends_once(default_model_dir: Path, name: str) -> None:
    template = chat_template_for(str(default_model_dir), name)
    generated = template.assistant.removeprefix(template.generation_prompt) if name else ""  # white space
    for messages in ([{"role": "system", "content": "Be brief."}, USER], [USER]):
        pieces = template.render(messages)
        for turn in range(1, 4):
            new = [{"role": "user", "content": f"and <now {turn}>?"}, {"role": "assistant", "content": "x"}, USER]
            messages += [{"role": "assistant", "content": "Hello!"}, *new]
            responses = sum(message["role"] == "assistant" for message in messages[: -len(new)])
            pieces += generated + "Hello!" + template.render_continuation(new, False, responses)
            assert pieces == template.render(messages)
    cut_off = template.render_continuation([USER], is_turn_closed=False)
    assert cut_off == (template.eoa if name else "<|im_end|>") + template.render_continuation([USER])


def test_any_token_that_ends_a_response_closes_the_turn(default_model_dir: Path, tmp_path: Path) -> None:
    for file in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        (tmp_path / file).symlink_to(default_model_dir / file)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 0]}')
    (tmp_path / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}<|endoftext|>\n{% endfor %}")
    assert chat_template_for(str(tmp_path)).render_continuation([USER]) == "\nHi, 你好<|endoftext|>\n"


@pytest.mark.parametrize("name", ["", "chatml"])
def test_a_malformed_continuation_is_refused_by_its_own_position(default_model_dir: Path, name: str) -> None:
    with pytest.raises(ValueError, match=r"messages\[1\].role"):
        chat_template_for(str(default_model_dir), name).render_continuation([USER, {"role": "bot", "content": "x"}])


def test_developer_is_system_and_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages: list[Any] = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts}]
    expected = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "a\nb"}]
    assert MODELS.get("chatml")().render(messages) == MODELS.get("chatml")().render(expected)


BAD_CONVERSATIONS: dict[str, tuple[Any, str]] = {
    "not a list": ({"role": "user"}, "messages must be a list, got dict"),
    "a string": ("hi", "messages must be a list, got str"),
    "empty": ([], "at least one message"),
    "not an object": (["hi"], r"messages\[0\] must be an object"),
    "unknown role": ([USER, {"role": "bot", "content": "x"}], r"messages\[1\].role must be one of .*, got 'bot'"),
    "no role": ([{"content": "x"}], r"messages\[0\].role must be one of .*, got None"),
    "unhashable role": ([{"role": [], "content": "x"}], r"messages\[0\].role must be one of"),
    "no content": ([{"role": "user"}], r"messages\[0\].content is missing"),
    "null content": ([{"role": "assistant", "content": None}], r"messages\[0\].content is missing"),
    "number content": ([{"role": "user", "content": 3}], r"messages\[0\].content must be a string or a list of parts"),
    "no parts": ([{"role": "user", "content": []}], r"messages\[0\].content must be .* empty list"),
    "image": (
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
        r"messages\[0\].content\[0\].type 'image_url' is not supported",
    ),
    "part without text": ([{"role": "user", "content": [{"type": "text"}]}], r"content\[0\].text must be a string"),
}


@pytest.mark.parametrize("case", BAD_CONVERSATIONS)
@pytest.mark.parametrize("template", ["", "chatml"])
def test_a_malformed_conversation_is_refused_by_name(default_model_dir: Path, template: str, case: str) -> None:
    messages, reason = BAD_CONVERSATIONS[case]
    with pytest.raises(ValueError, match=reason):
        chat_template_for(str(default_model_dir), template).render(messages)


def test_an_assistant_message_with_tool_calls_needs_no_content() -> None:
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    assert MODELS.get("chatml")().render([USER, {"role": "assistant", "content": None, "tool_calls": calls}])


BAD_TOOLS: dict[str, tuple[Any, str]] = {
    "no list": ({"type": "function"}, "tools must be a list, got dict"),
    "no object": (["add"], r"tools\[0\] must be an object with type and function, got str"),
    "no name": ([{"type": "function", "function": {}}], r"tools\[0\].function must be an object with a name, got {}"),
    "no function": ([{"type": "function", "function": "add"}], r"tools\[0\].function must be an object .*'add'"),
    "bare": ([{"description": "x"}], r"tools\[0\].function must be an object with a name"),
}


@pytest.mark.parametrize("case", BAD_TOOLS)
@pytest.mark.parametrize("template", ["", "qwen2d5", "glm4"])
def test_malformed_tools_are_refused_by_name(default_model_dir: Path, template: str, case: str) -> None:
    tools, reason = BAD_TOOLS[case]
    with pytest.raises(ValueError, match=reason):
        chat_template_for(str(default_model_dir), template).render([USER], tools)


BAD_CALLS: dict[str, tuple[Any, str]] = {
    "no list": ({"id": "1"}, "must be a list, got dict"),
    "no object": (["add"], r"\[0\].function must be an object with a name, got 'add'"),
    "no function": ([{"id": "1"}], r"\[0\].function must be an object with a name, got None"),
    "no name": ([{"function": {"arguments": "{}"}}], r"\[0\].function must be an object with a name"),
    "no arguments": ([{"function": {"name": "f"}}], r"\[0\].function.arguments is missing"),
}


@pytest.mark.parametrize("case", BAD_CALLS)
@pytest.mark.parametrize("template", ["", "internlm2", "llama3_1", "mistral-v3"])
def test_malformed_calls_are_refused_by_name(default_model_dir: Path, template: str, case: str) -> None:
    calls, reason = BAD_CALLS[case]
    messages = [USER, {"role": "assistant", "content": "", "tool_calls": calls}]
    with pytest.raises(
        ValueError, match=rf"messages\[1\].tool_calls{reason if reason[0] == chr(92) else ' ' + reason}"
    ):
        chat_template_for(str(default_model_dir), template).render(messages)


def test_tools_are_refused_where_a_text_is_to_be_filled_in() -> None:
    template = MODELS.get("codellama")(capability="infilling")
    with pytest.raises(ValueError, match="tools are not supported with capability 'infilling'"):
        template.render([{"role": "user", "content": "a<FILL>b"}], tools=[{"function": {"name": "f"}}])


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[7].content.text }}", "no element 7"),
        ("{{ 1 / (messages | length - 1) }}", "division by zero"),
        ("{{ [][messages[0].content | int] }}{{ messages | sum }}", "unsupported operand"),
        ("{% for m in messages %}{{ m.content }}", "Unexpected end of template"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
    ],
)
def test_what_the_models_own_template_refuses_is_the_callers_error(
    default_model_dir: Path, tmp_path: Path, template: str, reason: str
) -> None:
    for file in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        (tmp_path / file).symlink_to(default_model_dir / file)
    (tmp_path / "chat_template.jinja").write_text(template)
    with pytest.raises(ValueError, match=f"refused by the model's chat template: .*{reason}"):
        chat_template_for(str(tmp_path)).render([USER])


def test_the_documented_json_file_makes_the_documented_prompt(tmp_path: Path) -> None:
    fields: dict[str, Any] = {
        "model_name": "your awesome chat template name",
        "system": "<|im_start|>system\n",
        "meta_instruction": "You are a robot developed by LMDeploy.",
        "eosys": "<|im_end|>\n",
        "user": "<|im_start|>user\n",
        "eoh": "<|im_end|>\n",
        "assistant": "<|im_start|>assistant\n",
        "eoa": "<|im_end|>",
        "separator": "\n",
        "capability": "chat",
        "stop_words": ["<|im_end|>"],
    }
    (tmp_path / "t.json").write_text(json.dumps(fields))
    system = {"role": "system", "content": "You are a robot developed by LMDeploy."}
    expected = MODELS.get("chatml")().render([system, *MULTI_TURN])
    for source in (str(tmp_path / "t.json"), json.dumps(fields), ChatTemplateConfig(**fields)):
        template = chat_template_for("", source)
        assert template.render(MULTI_TURN) == expected
        assert template.stop_words == ["<|im_end|>"]


def test_the_default_models_template_is_built_in_too(default_model_dir: Path) -> None:
    template = chat_template_for(str(default_model_dir))
    for messages in CONVERSATIONS.values():
        assert MODELS.get("smollm2")().render(messages) == template.render(messages)


@pytest.mark.parametrize("name", ["internlm2", "vicuna", "llama2", "gemma", "llama3_1"])
def test_the_default_system_prompt_can_be_changed_or_taken_away_later(name: str) -> None:
    template: Any = MODELS.get(name)()
    template.meta_instruction = "Be brief."
    assert template.render(MULTI_TURN) == MODELS.get(name)().render(WITH_SYSTEM)
    template.meta_instruction = None
    assert template.render(MULTI_TURN) == MODELS.get(name)(meta_instruction=None).render(MULTI_TURN)
    assert "Be brief." not in template.render(MULTI_TURN)


@pytest.mark.parametrize("name", ["llama2", "gemma", "mistral"])
def test_a_second_system_message_has_no_place_in_the_first_user_turn(name: str) -> None:
    with pytest.raises(ValueError, match="at most one system message, and that first"):
        MODELS.get(name)().render([*WITH_SYSTEM, WITH_SYSTEM[0]])
    with pytest.raises(ValueError, match="must begin with a user message"):
        MODELS.get(name)().render([WITH_SYSTEM[0], MULTI_TURN[1]])


@pytest.mark.parametrize(
    ("name", "fields", "prompts"),
    [
        ("base", {}, ("{}", "{}")),
        ("vicuna", {"capability": "completion"}, ("{}", "{}")),
        ("baichuan2", {}, ("<reserved_106>{}<reserved_107>",) * 2),
        ("llama2", {"meta_instruction": "Be brief."}, ("<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\n{} [/INST]", None)),
        ("qwen", {}, (None, "\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n")),
    ],
)
def test_templates_have_the_methods_of_lmdeploy_s(
    name: str, fields: dict[str, Any], prompts: tuple[str | None, str | None]
) -> None:
    template = MODELS.get(name)(**fields)
    for begins, expected in zip((True, False), prompts, strict=True):
        prompt = template.get_prompt("Hi", sequence_start=begins)
        assert template.messages2prompt("Hi", begins) == prompt
        assert template.messages2prompt([{"role": "user", "content": "Hi"}], sequence_start=begins) == prompt
        assert expected is None or prompt == expected.format("Hi")
    begun = template.messages2prompt([USER, {"role": "assistant", "content": "It is"}])
    assert begun.endswith("It is")


def test_a_class_may_write_prompts_itself() -> None:
    class Own(BaseChatTemplate):
        def messages2prompt(self, messages: Any, sequence_start: bool = True, **options: Any) -> str:
            if isinstance(messages, str):
                return str(super().messages2prompt(messages, sequence_start))
            names = [tool["function"]["name"] for tool in options.get("tools", ())]
            return f"{sequence_start} {names} " + "/".join(message["content"] for message in messages)

    template = Own(user="<u>", eoh="<e>")
    tool = {"type": "function", "function": {"name": "look"}}
    assert template.render(MULTI_TURN, [tool]) == "True ['look'] Hi, 你好/Hello!/and now?"
    assert template.render_continuation([USER]) == "False [] Hi, 你好"
    assert template.messages2prompt("Hi") == template.get_prompt("Hi") == "<u>Hi<e>"


def test_another_capability_is_an_assertion_error_of_the_first_prompt() -> None:
    template = MODELS.get("vicuna")(capability="voice")
    with pytest.raises(AssertionError, match="capability must be one of"):
        template.get_prompt("Hi")
    with pytest.raises(AssertionError, match="capability must be one of"):
        MODELS.get("codellama")(capability="java")


def test_classes_of_lmdeploy_s_templates_can_be_made_and_inherited_from() -> None:
    expected = (
        "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
    )
    assert Llama3(model_name="llama", capability="chat").get_prompt("Hi") == expected  # bos is the tokenizer's
    for name, registered in lmdeploy.model._CLASSES.items():
        made = type("Own", (getattr(lmdeploy.model, name),), {})(meta_instruction="Be brief.")
        assert made.messages2prompt([USER]) == MODELS.get(registered)(meta_instruction="Be brief.").render([USER])


@pytest.mark.parametrize("capability", ["completion", "python"])
@pytest.mark.parametrize("name", ["internlm2", "llama2", "codellama", "qwen2d5"])
def test_a_template_that_completes_writes_contents_as_they_are(name: str, capability: str) -> None:
    template = chat_template_for("", json.dumps({"model_name": name, "capability": capability}))
    assert template.render(WITH_SYSTEM) == "Be brief.Hi, 你好Hello!and now?"
    assert template.render_continuation([USER]) == "Hi, 你好"


def test_infilling_is_refused_where_no_model_was_trained_for_it() -> None:
    with pytest.raises(ValueError, match=r"'infilling' is not supported by this chat template; .*must be 'chat'"):
        chat_template_for("", '{"model_name": "vicuna", "capability": "infilling"}')


def test_given_fields_override_those_of_a_builtin_template() -> None:
    template = ChatTemplateConfig("qwen", meta_instruction="Be brief.").chat_template
    assert template.render([USER]) == MODELS.get("qwen")().render([{"role": "system", "content": "Be brief."}, USER])


def test_a_config_survives_json(tmp_path: Path) -> None:
    config = ChatTemplateConfig("mine", user="用户：", stop_words=["x"])
    text = config.to_json(str(tmp_path / "t.json"))
    assert ChatTemplateConfig.from_json(text) == config
    assert ChatTemplateConfig.from_json(str(tmp_path / "t.json")) == config


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "is no JSON"),
        ('{"user": "x"}', "with a model_name"),
        ('{"model_name": "x", "usr": "y"}', "fields usr are unknown; known: model_name, system"),
        ('{"model_name": "x", "user": 3}', "user must be a string, got 3"),
        ('{"model_name": "x", "stop_words": "y"}', "stop_words must be a list of non-empty strings"),
        (
            '{"model_name": "x", "capability": "sing"}',
            "capability must be one of 'completion', 'infilling', 'chat', 'python', got 'sing'",
        ),
        ("nowhere.json", "nowhere.json cannot be read"),
    ],
)
def test_a_malformed_template_description_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        chat_template_for("", text)


def test_a_template_class_can_be_registered_as_documented(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODELS, "_factories", dict(MODELS._factories))

    @MODELS.register_module(name="customized_model")
    class CustomizedModel(BaseChatTemplate):
        """A customized chat template."""

        def __init__(
            self, meta_instruction: str = "You are a robot.", eoh: str = "\n", stop_words: Any = ("end",)
        ) -> None:
            super().__init__(meta_instruction=meta_instruction, eosys="\n", eoh=eoh, stop_words=stop_words)

    template = ChatTemplateConfig("customized_model").chat_template
    assert isinstance(template, CustomizedModel)
    assert template.render([USER]) == "You are a robot.\nHi, 你好\n"
    assert template.stop_words == ["end"]
    with pytest.raises(ValueError, match=r"'customized_model': .*tool"):
        _ = ChatTemplateConfig("customized_model", tool="x").chat_template
