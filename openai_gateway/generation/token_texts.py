"""Bytes and texts of tokens. The gateway owns no tokenizer: they come out of the engine directory, or are asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path

from lmdeploy.serve.client import TritonClient
from lmdeploy.token_bytes import TokenBytes
from openai_gateway.errors import ApiError

_AT_A_TIME = 4096  # tokens asked for


class TokenTexts:
    """Bytes of tokens, by id.

    ``engine_dir``: has ``token_bytes.bin``.
    """

    def __init__(self, client: TritonClient, engine_dir: Path | None) -> None:
        self._client = client  # asked for tokens when there is no table
        self._path = engine_dir / "token_bytes.bin" if engine_dir is not None else None
        self._table: TokenBytes | None = None
        self._loading = asyncio.Lock()
        self._cache: dict[int, tuple[bytes, bool]] = {}  # and whether it is special

    async def table(self) -> TokenBytes | None:
        """Return the table, read at its first use; None when there is none."""
        if self._table is None and self._path is not None:
            async with self._loading:
                if self._table is None:
                    self._table = await asyncio.to_thread(TokenBytes.read, self._path)
        return self._table

    def is_special(self, token: int) -> bool:
        """Return whether a token that was looked up is left out of texts."""
        if self._table is None:
            return self._cache.get(token, (b"", False))[1]
        return token < len(self._table.special) and self._table.special[token]

    async def lookup(self, token_ids: Iterable[int]) -> dict[int, bytes]:
        """Return the bytes of each token."""
        table = await self.table()
        if table is not None:
            return {token: _entry(table, token) for token in token_ids}
        requested = set(token_ids)
        missing = sorted(requested - self._cache.keys())
        for begin in range(0, len(missing), _AT_A_TIME):
            some = missing[begin : begin + _AT_A_TIME]
            tokens, shown = await asyncio.gather(*(self._client.token_bytes(some, skip) for skip in (False, True)))
            self._cache |= {i: (token, token != text) for i, token, text in zip(some, tokens, shown, strict=True)}
        return {token: self._cache[token][0] for token in requested}

    async def join(self, token_ids: Sequence[int], skip_special_tokens: bool) -> str:
        """Return the text of tokens; raise `ApiError` if a token does not exist."""
        table = await self.table()
        if table is None:
            return await self._client.detokenize(token_ids, skip_special_tokens)
        size = len(table.tokens)
        unknown = next((token for token in token_ids if token >= size), None)
        if unknown is not None:
            raise ApiError(400, f"tokens must be below {size}, got {unknown}", param="tokens", code="invalid_value")
        shown = (token for token in token_ids if not (skip_special_tokens and table.special[token]))
        return table.join(list(shown)).decode(errors="replace")


def _entry(table: TokenBytes, token: int) -> bytes:
    return table.tokens[token] if 0 <= token < len(table.tokens) else b""
