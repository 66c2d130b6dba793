"""Template names for the Triton clients of LMDeploy 0.2.0 to 0.5.1.

They make prompts by themselves, with the template whose name they read from the engine's parameters, and stop when they
do not know it. So they get a name that each of those releases knows: the one whose prompts are most like the model's.
"""

from difflib import SequenceMatcher

from lmdeploy.templates.base import ChatTemplate
from lmdeploy.templates.families import MODELS

# Of equally good ones the first is taken. `codellama` is not among them: for it these clients end a message otherwise.
KNOWN_TO_ALL = (
    "base", "qwen-7b", "internlm2-chat-7b", "yi", "llama2", "vicuna", "internlm-chat-7b", "solar", "wizardlm",
    "ultracm", "ultralm", "puyu",
)  # fmt: skip
_TURNS = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": "Bye"},
]
_WITH_SYSTEM = [{"role": "system", "content": "Be brief."}, *_TURNS]


def older_client_template(template: ChatTemplate) -> str:
    """Return the name of the template that these clients shall use for a model with ``template``."""
    return max(KNOWN_TO_ALL, key=lambda name: _likeness(template, MODELS.get(name)()))


def _likeness(model: ChatTemplate, client: ChatTemplate) -> tuple[float, float]:
    """Return how like two templates' prompts are: first with one system prompt, then each with its own default."""
    form, default = (_ratio(_written(model, turns), _written(client, turns)) for turns in (_WITH_SYSTEM, _TURNS))
    return round(form, 2), default


def _ratio(one: str, other: str) -> float:
    return SequenceMatcher(None, one, other, autojunk=False).ratio()


def _written(template: ChatTemplate, messages: list[dict[str, str]]) -> str:
    """Return the prompt; of a template that has no place for a system prompt, the one without it."""
    for given in (messages, _TURNS, _TURNS[:1]):
        try:
            return template.render(list(given))
        except ValueError:
            continue
    return ""
