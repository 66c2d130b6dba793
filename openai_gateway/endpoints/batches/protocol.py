"""Body of ``POST /v1/batches`` (platform.openai.com/docs/api-reference/batch)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, field_validator

from openai_gateway.batches.records import SECONDS_KEPT
from openai_gateway.endpoints.files.protocol import ExpiresAfter
from openai_gateway.protocol.fields import AnyText, FieldError, Strict, Text
from openai_gateway.registry import BATCHED

MAX_HOURS = 168
if TYPE_CHECKING:
    Endpoint = str
else:
    Endpoint = Literal[BATCHED]


class BatchRequest(Strict):
    """A batch of requests for one endpoint, and its deadline."""

    input_file_id: Text
    endpoint: Endpoint
    completion_window: Annotated[str, Field(pattern=r"^[1-9][0-9]{0,2}h$")]
    metadata: (
        Annotated[
            dict[Annotated[AnyText, Field(max_length=64)], Annotated[AnyText, Field(max_length=512)]],
            Field(max_length=16),
        ]
        | None
    ) = None
    output_expires_after: ExpiresAfter | None = None

    @field_validator("completion_window")
    @classmethod
    def _is_not_too_long(cls, value: str) -> str:
        if int(value[:-1]) > MAX_HOURS:
            raise FieldError("", f"completion_window must be at most {MAX_HOURS}h, got {value}")
        return value

    @property
    def hours(self) -> int:
        """How long it may take."""
        return int(self.completion_window[:-1])

    @property
    def results_seconds(self) -> int:
        """How long results are kept."""
        return self.output_expires_after.seconds if self.output_expires_after else SECONDS_KEPT
