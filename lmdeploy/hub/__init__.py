"""Hugging Face hub models: names, downloads that are checked, and what was pulled.

The files lie where ``huggingface_hub`` keeps them; ``pulled.py`` remembers which of them make up a model. Only a model
that is remembered is whole: it is written down when every file has the checksum that the hub names.
"""


class HubError(ValueError):
    """A model cannot be pulled, or is not there; the text says why, without the model's name."""


class HubUnreachableError(HubError):
    """Nobody knows what the hub has."""
