"""Chat templates of LoRA adapters: an adapter may have been taught in another form than its base."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from lmdeploy.errors import CheckpointError
from lmdeploy.outside_links import reject_outside_links
from lmdeploy.templates.base import ChatTemplate
from lmdeploy.tokenizer_readers.settings import TokenizerSettings

if TYPE_CHECKING:
    from lmdeploy.tokenizer import Tokenizer


class AdapterTemplates:
    """The templates of those adapters that have one, by the adapter's name. Safe to use from any thread."""

    def __init__(self, tokenizer: "Tokenizer") -> None:
        self._tokenizer = tokenizer  # the base model's: an adapter has no tokens of its own
        self._templates: dict[str, ChatTemplate] = {}  # one operation at a time, each of them atomic

    def add(self, name: str, directory: Path) -> None:
        """Learn the template of an adapter's directory: chat_template.jinja, or that of its tokenizer_config.json.

        Raises `CheckpointError` if there is one that is invalid.
        """
        from lmdeploy.model_metadata.end_tokens import closing_token, end_texts
        from lmdeploy.templates.jinja import JinjaChatTemplate, UntrustedTemplate

        reject_outside_links(directory)
        try:
            source = TokenizerSettings.read(directory).chat_template
            if not source:
                self._templates.pop(name, None)
                return
            ends = end_texts(self._tokenizer)
            named = {"default": source} if isinstance(source, str) else source
            untrusted = {name: UntrustedTemplate(text) for name, text in named.items()}
            template = JinjaChatTemplate(untrusted, self._tokenizer.special_tokens, ends)
            template.require_valid()
            closing = closing_token(template, self._tokenizer)
            template.stop_words = [closing] if closing and closing not in ends else []
        except (OSError, ValueError, TypeError, AttributeError) as error:
            reason = " ".join(str(error).split())[:300]
            raise CheckpointError(
                directory, [f"adapter {name}: its chat template cannot be read ({reason})"]
            ) from error
        self._templates[name] = template

    def add_all(self, adapters: Mapping[str, str]) -> None:
        """Learn those of several directories by name; see `add`."""
        for name, directory in adapters.items():
            self.add(name, Path(directory))

    def drop(self, name: str) -> None:
        """Forget an adapter."""
        self._templates.pop(name, None)

    @property
    def is_empty(self) -> bool:
        """Whether no adapter has one."""
        return not self._templates

    def get(self, name: str | None) -> ChatTemplate | None:
        """Return an adapter's template; None: it has none, and is asked as the base is."""
        return self._templates.get(name) if name else None
