"""What can go wrong with a model of a hub."""


class HubError(ValueError):
    """A model cannot be pulled, or is not there; the text says why, without the model's name."""


class HubUnreachableError(HubError):
    """Nobody knows what the hub has."""
