"""``suffix``: the prompt of a fill-in-the-middle completion."""

from __future__ import annotations

from lmdeploy.templates.infilling import Infilling
from openai_gateway.endpoints.completions.protocol import CompletionRequest
from openai_gateway.errors import ApiError
from openai_gateway.models import ServedModel


def infilling_by(model: ServedModel) -> Infilling:
    """Return how a model is asked for a missing middle.

    Raises
    ------
    ApiError
        It cannot be.
    """
    if model.infilling is None:
        raise ApiError(400, f"The model `{model.name}` fills in no middles; leave suffix out.", param="suffix")
    return model.infilling


def whole_prompt(body: CompletionRequest, model: ServedModel, prompt: str | list[int]) -> str | list[int]:
    """Return a prompt of a body as the model wants it, with the text after the gap; raise as `infilling_by`."""
    return infilling_by(model).prompt(prompt, body.suffix) if body.suffix and isinstance(prompt, str) else prompt


def stops_of_middle(body: CompletionRequest, model: ServedModel) -> list[str]:
    """Return what ends the response alongside what the body says."""
    return list(model.infilling.stop_words) if body.suffix and model.infilling else []
