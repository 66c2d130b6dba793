"""Chat templates: which one a model gets, and how users describe their own."""

import dataclasses
import functools
import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmdeploy.paths import locate_model, model_name_of, tokenizer_dir
from lmdeploy.templates.base import ChatTemplate
from lmdeploy.templates.chosen import ChosenTemplates
from lmdeploy.templates.families import MODELS
from lmdeploy.templates.matching import builtin_for
from lmdeploy.templates.older_clients import older_client_template
from lmdeploy.templates.strings import BaseChatTemplate, Capability
from lmdeploy.templates.tool_calling import ToolChatTemplate

if TYPE_CHECKING:
    from typing_extensions import Self

    from lmdeploy.tokenizer import Tokenizer

__all__ = [
    "MODELS",
    "BaseChatTemplate",
    "ChatTemplate",
    "ChatTemplateConfig",
    "ToolChatTemplate",
    "best_match_model",
    "chat_template_for",
    "template_of",
]

logger = logging.getLogger(__name__)

# The classes that LMDeploy 0.6.5 has here, by the names under which their templates are registered.
_CLASSES = dict(
    pair.split("=")
    for pair in """
    BaseModel=base Baichuan2=baichuan2 ChatGLM2=chatglm ChatGLM3=chatglm3 CogVLM=cogvlm ChatmlDirect=llava-chatml
    CodeGeeX4Chat=codegeex4 CodeLlama=codellama CogVLM2=cogvlm2 DbrxInstruct=dbrx DeepSeek=deepseek-coder
    Deepseek=deepseek DeepseekVL=deepseek-vl Falcon=falcon Gemma=gemma Glm4Chat=glm4 InternLM2Chat7B=internlm2
    InternLMChat7B=internlm InternLMXComposer2Chat7B=internlm-xcomposer2 InternVL2_5=internvl2_5
    InternVL2InternLM2=internvl2-internlm2 InternVL2Phi3=internvl2-phi3 InternVLZH=internvl-zh
    InternVLInternLM2Chat=internvl-internlm2 InternVLPhi3=internvl-phi3 Llama2=llama2 Llama3=llama3
    Llama3_1=llama3_1 Llavav1=llava-v1 MiniGemini=mini-gemini-vicuna MistralChat=mistral Molmo=molmo
    Phi3Instruct=phi-3 Puyu=puyu Qwen2d5Chat=qwen2d5 Qwen7BChat=qwen SOLAR=solar UltraChat=ultracm Vicuna=vicuna
    Yi=yi YiVL=yi-vl
    """.split()
)


def __getattr__(name: str) -> type[BaseChatTemplate]:
    """Return the class of a built-in template, to be made or inherited from as in LMDeploy 0.6.5."""
    if name not in _CLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    factory: functools.partial[BaseChatTemplate] = MODELS.get(_CLASSES[name])  # type: ignore[assignment]
    made = functools.partialmethod(factory.func.__init__, **factory.keywords)
    return type(name, (factory.func,), {"__init__": made})  # type: ignore[arg-type]


@dataclass
class ChatTemplateConfig:
    """A chat template by name, with changes.

    Parameters
    ----------
    model_name
        A registered template (``lmdeploy list``), whose strings the other fields replace; or any other name, for a
        template made of the other fields alone.
    system, meta_instruction, eosys, user, eoh, assistant, eoa, tool, eotool, separator, capability, stop_words
        See :class:`BaseChatTemplate`; None: as the registered template has it.
    """

    model_name: str
    system: str | None = None
    meta_instruction: str | None = None
    eosys: str | None = None
    user: str | None = None
    eoh: str | None = None
    assistant: str | None = None
    eoa: str | None = None
    tool: str | None = None
    eotool: str | None = None
    separator: str | None = None
    capability: Capability | None = None
    stop_words: list[str] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.model_name, str) or not self.model_name:
            raise ValueError(f"model_name must be the name of a chat template, got {self.model_name!r}")
        for name, value in self._changes().items():
            if name == "stop_words":
                if not isinstance(value, list) or not all(isinstance(word, str) and word for word in value):
                    raise ValueError(f"stop_words must be a list of non-empty strings, got {value!r}")
            elif not isinstance(value, str):
                raise ValueError(f"{name} must be a string, got {value!r}")

    @property
    def chat_template(self) -> ChatTemplate:
        """The template itself.

        Raises
        ------
        ValueError
            If the name is not registered and nothing else is given, or a field does not fit the template.
        """
        changes = self._changes()
        factory = MODELS.get(self.model_name) if self.model_name in MODELS or not changes else BaseChatTemplate
        try:
            template = factory(**changes)
        except TypeError as error:
            raise ValueError(f"chat template {self.model_name!r}: {error}") from error
        if isinstance(template, BaseChatTemplate):
            template.require_capability()
        return template

    @classmethod
    def from_json(cls, file_or_string: str) -> "Self":
        """Return the config in a JSON file, or in JSON text.

        Raises
        ------
        ValueError
            If there is no such file, it holds no JSON object, lacks ``model_name`` or has unknown fields.
        """
        text = file_or_string
        if not text.lstrip().startswith("{"):
            try:
                text = Path(file_or_string).read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise ValueError(f"chat template file {file_or_string} cannot be read ({error})") from error
        try:
            fields: Any = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"chat template {file_or_string[:80]!r} is no JSON ({error})") from error
        known = [field.name for field in dataclasses.fields(cls)]
        if not isinstance(fields, dict) or "model_name" not in fields:
            raise ValueError("a chat template must be a JSON object with a model_name")
        unknown = sorted(set(fields) - set(known))
        if unknown:
            raise ValueError(f"chat template fields {', '.join(unknown)} are unknown; known: {', '.join(known)}")
        return cls(**fields)

    def to_json(self, file_path: str | None = None) -> str:
        """Return the config as JSON text, without the fields left at None; write it to ``file_path`` too if given."""
        text = json.dumps({"model_name": self.model_name} | self._changes(), ensure_ascii=False, indent=2)
        if file_path is not None:
            Path(file_path).write_text(text, encoding="utf-8")
        return text

    def _changes(self) -> dict[str, Any]:
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: value for name, value in fields.items() if value is not None and name != "model_name"}


def best_match_model(model_path: str) -> str:
    """Return the name of the chat template that a model's path suggests; ``base`` if none.

    A registered class with a ``match(model_path)`` of its own is asked first, then the model's name is looked up among
    those of the built-in families.

    Parameters
    ----------
    model_path
        A directory or the name of a Hugging Face repository; it need not exist.
    """
    return MODELS.match(model_path) or builtin_for(model_name_of(Path(model_path)))


def chat_template_for(
    model_path: str,
    name_or_file_or_config: str | ChatTemplateConfig | None = None,
    tokenizer: "Tokenizer | None" = None,
) -> ChatTemplate:
    """Return the chat template of a model.

    The one asked for; else the Jinja template the checkpoint brings along; else the built-in one its name suggests;
    else ``base``, which writes the contents as they are.

    Parameters
    ----------
    model_path
        As in :func:`lmdeploy.turbomind.engine_dir.resolve`.
    name_or_file_or_config
        The name of a registered template, a JSON file or JSON text (see ``ChatTemplateConfig``), or a config. Empty or
        None: chosen for the model.
    tokenizer
        The model's tokenizer if it is at hand, so that it is not loaded again.

    Raises
    ------
    ValueError
        If the template asked for is unknown or malformed, or (``CheckpointError``) there is no such model.
    """
    if isinstance(name_or_file_or_config, ChatTemplateConfig):
        return name_or_file_or_config.chat_template
    if name_or_file_or_config:
        return _named(name_or_file_or_config)
    from lmdeploy.model_metadata.end_tokens import end_texts
    from lmdeploy.templates.jinja import JinjaChatTemplate
    from lmdeploy.tokenizer import Tokenizer

    directory = locate_model(model_path)
    tokenizer = tokenizer or Tokenizer(str(directory))
    if tokenizer.chat_template:
        logger.info("chat template of %s: its own, from %s", model_path, tokenizer_dir(directory))
        return JinjaChatTemplate(tokenizer.chat_template, tokenizer.special_tokens, end_texts(tokenizer))
    chosen = ChosenTemplates.read(tokenizer_dir(directory))
    name = MODELS.match(str(directory)) or (chosen.builtin if chosen else builtin_for(model_name_of(directory)))
    logger.info("chat template of %s: built-in %s, chosen by the model's name", model_path, name)
    return MODELS.get(name)()


def template_of(config: ChatTemplateConfig | None) -> ChatTemplate | None:
    """Return the template that a call names; None if it names none.

    Raises
    ------
    ValueError
        If it is no ``ChatTemplateConfig``, or an unknown template.
    """
    if config is None:
        return None
    if not isinstance(config, ChatTemplateConfig):
        raise ValueError(f"chat_template_config must be a ChatTemplateConfig, got {type(config).__name__}")
    return config.chat_template


def choose_templates(model_dir: Path, tokenizer: "Tokenizer") -> ChosenTemplates:
    """Return the chat templates that an engine directory stores for a checkpoint."""
    template = chat_template_for(str(model_dir), tokenizer=tokenizer)
    return ChosenTemplates(builtin_for(model_name_of(model_dir)), older_client_template(template))


def name_for_older_clients(given_name: str | None, model_path: str, name_or_file: str = "") -> str:
    """Return the model's name for the Triton clients of LMDeploy up to 0.5.1, which take it for a template's.

    Parameters
    ----------
    given_name
        The model's name as the user gave it, if he did; that of a template is what these clients shall use.
    model_path, name_or_file
        As ``chat_template_for`` takes them.

    Raises
    ------
    ValueError
        As ``chat_template_for``.
    """
    if given_name in MODELS:
        return str(given_name)
    chosen = None if name_or_file else ChosenTemplates.read(tokenizer_dir(locate_model(model_path)))
    return chosen.older_clients if chosen else older_client_template(chat_template_for(model_path, name_or_file))


def _named(name_or_file: str) -> ChatTemplate:
    if name_or_file in MODELS:
        return MODELS.get(name_or_file)()
    if name_or_file.lstrip().startswith("{") or name_or_file.endswith(".json") or Path(name_or_file).is_file():
        return ChatTemplateConfig.from_json(name_or_file).chat_template
    return MODELS.get(name_or_file)()
