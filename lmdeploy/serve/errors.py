"""Errors a caller of the serving layer can act on."""


class TritonUnavailable(Exception):
    """Triton cannot be reached, or does not serve the model now; trying again later may work."""


class TritonRequestError(Exception):
    """Triton refused, or failed, one request; others are not affected.

    Attributes
    ----------
    code : str
        Name of the gRPC status, e.g. ``INVALID_ARGUMENT``.
    message : str
        Text for the user.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class TritonStartError(Exception):
    """tritonserver could not be started; the text says why."""


class PortInUseError(TritonStartError):
    """A port that is needed is taken by another process."""
