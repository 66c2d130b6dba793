"""What ``tokenizer_config.json`` and the files alongside it say of a tokenizer."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import AddedToken
    from typing_extensions import Self


@dataclass(frozen=True)
class TokenizerSettings:
    """The settings of the tokenizer in a directory.

    Attributes
    ----------
    directory
        Where its files are.
    content
        ``tokenizer_config.json``; empty if there is none.
    """

    directory: Path
    content: dict[str, Any]

    @classmethod
    def read(cls, directory: Path) -> "Self":
        """Return the settings of the tokenizer in ``directory``."""
        file = directory / "tokenizer_config.json"
        return cls(directory, json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {})

    @property
    def class_name(self) -> str:
        """The name of the class that the tokenizer was saved from; empty if it is not given."""
        return str(self.content.get("tokenizer_class") or "")

    @property
    def own_class(self) -> str:
        """The name of the class that the checkpoint brings as code; empty if it brings none."""
        auto_map = self.content.get("auto_map") or {}
        names = auto_map.get("AutoTokenizer") or "" if isinstance(auto_map, dict) else auto_map
        name = next((name for name in names if name), "") if isinstance(names, list) else names
        return str(name).rpartition(".")[2]

    @property
    def chat_template(self) -> Any:
        """The chat template as ``transformers`` takes it: of the file alongside, else of the settings; None if none."""
        file = self.directory / "chat_template.jinja"
        return file.read_text(encoding="utf-8") if file.is_file() else self.content.get("chat_template")

    @property
    def added_tokens(self) -> "dict[int, AddedToken]":
        """The tokens that the settings add to the vocabulary, or put in the place of its own, by id."""
        from tokenizers import AddedToken

        listed = self.content.get("added_tokens_decoder") or {}
        return {
            int(number): AddedToken(**{name: value for name, value in token.items() if name != "__type"})
            for number, token in listed.items()
        }

    def token(self, role: str) -> str:
        """Return the text of the token that has a role, such as ``bos_token``; empty if none is named."""
        named = self.content.get(role) or ""
        return str(named["content"] if isinstance(named, dict) else named)

    def file(self, name: str) -> Path:
        """Return the path of a file of the tokenizer.

        Raises
        ------
        FileNotFoundError
            If it is not there.
        """
        path = self.directory / name
        if not path.is_file():
            raise FileNotFoundError(f"{name} is missing: {self.own_class or self.class_name} is read from it")
        return path
