"""Settings in ``tokenizer_config.json`` and the files alongside it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import AddedToken
    from typing_extensions import Self


@dataclass(frozen=True)
class TokenizerSettings:
    """The settings of the tokenizer in a directory."""

    directory: Path  # where its files are
    content: dict[str, Any]  # ``tokenizer_config.json``; empty if there is none

    @classmethod
    def read(cls, directory: Path) -> "Self":
        """Return the settings of the tokenizer in ``directory``."""
        return cls(directory, read_object(directory / "tokenizer_config.json"))

    @property
    def class_name(self) -> str:
        """The name of the class that the tokenizer was saved from; empty if it is not given."""
        return str(self.content.get("tokenizer_class") or "")

    @property
    def custom_class(self) -> str:
        """The name of the class that the checkpoint brings as code; empty if it brings none."""
        auto_map = self.content.get("auto_map") or {}
        names = auto_map.get("AutoTokenizer") or "" if isinstance(auto_map, dict) else auto_map
        name = next((name for name in names if name), "") if isinstance(names, list) else names
        return str(name).rpartition(".")[2]

    @property
    def chat_template(self) -> str | dict[str, str] | None:
        """The chat template, or several by name; None if there is none."""
        return self.template_and_file[0]

    @property
    def template_and_file(self) -> tuple[str | dict[str, str] | None, str]:
        """The chat template or templates, and the file it is from; None and an empty name if there is none.

        Of several files the one that ``transformers`` takes: for models with a processor, its own files come first, and
        for the others, to which it means nothing, last.
        """
        processor = [("processor_config.json", None), ("chat_template.json", None)]
        tokenizer = [("chat_template.jinja", self._template_files()), ("tokenizer_config.json", self.content)]
        has_processor = any(
            (self.directory / f"{name}_config.json").is_file() for name in ("processor", "preprocessor")
        )
        for name, content in processor + tokenizer if has_processor else tokenizer + processor:
            found = (read_object(self.directory / name) if content is None else content).get("chat_template")
            if isinstance(found, list):
                found = {entry["name"]: entry["template"] for entry in found}
            if found:
                return found, name
        return None, ""

    def _template_files(self) -> dict[str, Any]:
        """Return the template files as ``tokenizer_config.json`` would have them."""
        file = self.directory / "chat_template.jinja"
        others = sorted((self.directory / "additional_chat_templates").glob("*.jinja"))
        found = {path.stem: path.read_text(encoding="utf-8") for path in others}
        if file.is_file():
            found["default"] = file.read_text(encoding="utf-8")
        return {"chat_template": found["default"] if list(found) == ["default"] else found}

    @property
    def added_tokens(self) -> "dict[int, AddedToken]":
        """The tokens that the settings add to the vocabulary, or put in the place of its own, by id."""
        from tokenizers import AddedToken

        listed = self.content.get("added_tokens_decoder") or {}
        return {
            int(number): AddedToken(**{name: value for name, value in token.items() if name != "__type"})
            for number, token in listed.items()
        }

    @property
    def without_empty(self) -> dict[str, None]:
        """Return None for each role that the settings give an empty text, which is that of no token."""
        return {role: None for role, text in self.content.items() if role.endswith("_token") and text == ""}

    def token(self, role: str) -> str:
        """Return the text of the token that has a role, such as ``bos_token``; empty if none is named."""
        named = self.content.get(role) or ""
        return str(named["content"] if isinstance(named, dict) else named)

    def file(self, name: str) -> Path:
        """Return the path of a file of the tokenizer; raise `FileNotFoundError` if it is not there."""
        path = self.directory / name
        if not path.is_file():
            raise FileNotFoundError(f"{name} is missing: {self.custom_class or self.class_name} is read from it")
        return path


def read_object(file: Path) -> dict[str, Any]:
    """Return the object in a file; empty if there is none."""
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return content
