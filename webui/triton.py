"""A Triton server as the page sees it."""

from __future__ import annotations

from lmdeploy.serve.client import TritonClient


class TritonServer(TritonClient):
    """A client that also tells what a reader of the page may choose from."""

    async def models(self) -> list[str]:
        """Return the model's name, then those of its LoRA adapters.

        Adapters with a note are bound to API keys, which readers of the page have not shown.

        Raises
        ------
        TritonUnavailable
            The server cannot be reached.
        TritonRequestError
            It tells its adapters to those alone who know its control key.
        """
        name = await self.model_name()
        return [name, *sorted(adapter for adapter, note in (await self.adapters()).items() if not note)]
