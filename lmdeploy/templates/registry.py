"""Chat template lookup by name."""

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from lmdeploy.templates.base import ChatTemplate

TemplateFactory = Callable[..., ChatTemplate]
_Registered = TypeVar("_Registered", bound=TemplateFactory)


class Registry:
    """Chat templates by name. A template is a class, or a function, that takes ``BaseChatTemplate``'s arguments.

    ``aliases``: further names: alias to name. A template registered under an alias goes before it.
    """

    def __init__(self, aliases: Mapping[str, str] | None = None) -> None:
        self._factories: dict[str, TemplateFactory] = {}
        self.aliases = dict(aliases or {})

    def register_module(self, name: str | Sequence[str]) -> Callable[[_Registered], _Registered]:
        """Return a decorator that registers a template under one or several names; the last one registered wins."""

        def register(factory: _Registered) -> _Registered:
            for one in [name] if isinstance(name, str) else name:
                self._factories[one] = factory
            return factory

        return register

    def names(self) -> list[str]:
        """Return all names, without the aliases, in alphabetical order."""
        return sorted(self._factories)

    def __contains__(self, name: object) -> bool:
        return name in self._factories or name in self.aliases

    def get(self, name: str) -> TemplateFactory:
        """Return the template registered as ``name``, or the one this is an alias of.

        Raises `ValueError` if there is none; lists the names most like it.
        """
        factory = self._factories.get(name) or self._factories.get(self.aliases.get(name, ""))
        if factory is None:
            similar = difflib.get_close_matches(name.lower(), [*self._factories, *self.aliases], n=5, cutoff=0.5)
            near = dict.fromkeys(self.aliases.get(one, one) for one in similar)
            hint = f"did you mean {' or '.join(near)}? All names: lmdeploy list" if near else "lmdeploy list prints all"
            raise ValueError(f"chat template {name!r} is unknown; {hint}")
        return factory

    def match(self, model_name: str) -> str | None:
        """Return the first result of the classes' ``match`` for a model's name, newest class first; None if none.

        ``model_name``: name or path of a model, handed on as it is to ``match(model_path) -> str | None``.
        """
        for factory in reversed(self._factories.values()):
            match = getattr(factory, "match", None)
            name: str | None = match(model_name) if match is not None else None
            if name is not None:
                return name
        return None
