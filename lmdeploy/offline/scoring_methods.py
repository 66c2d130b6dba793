"""Methods of a loaded model that score or embed texts instead of generating."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lmdeploy.offline.scoring import TokenIds, cross_entropies, prompt_logits
from lmdeploy.offline.texts import embed_texts, score_pairs, sparse_vectors, token_vectors
from lmdeploy.tokenizer import Tokenizer
from lmdeploy.turbomind.engine import Engine

if TYPE_CHECKING:
    import numpy as np
    import torch


class ScoringMethods:
    """Cross-entropy, logits, embeddings and relevance scores of texts.

    Attributes
    ----------
    engine, tokenizer
        The model's, which a subclass sets.
    """

    engine: Engine
    tokenizer: Tokenizer

    def get_ppl(self, input_ids: TokenIds) -> list[float]:
        """Return the mean cross-entropy of the tokens of each text (the logarithm of its perplexity).

        Parameters
        ----------
        input_ids
            Tokens of one or several texts, or the output of a ``transformers`` tokenizer. A text may have up to
            ``session_len`` tokens; long texts are computed in chunks.

        Returns
        -------
        list of float
            In nats per token, over all tokens but the first; one value per text.

        Raises
        ------
        ValueError
            If a text has less than two tokens or exceeds the session length.
        RuntimeError
            If the engine failed on a request.
        """
        return cross_entropies(self.engine, input_ids)

    def get_logits(self, input_ids: TokenIds) -> "torch.Tensor":
        """Return the logits after each token of texts.

        Parameters
        ----------
        input_ids
            As for ``get_ppl``, with fewer than ``session_len`` tokens.

        Returns
        -------
        torch.Tensor
            ``[texts, tokens, vocab]`` float32; 0 after the end of shorter texts.

        Raises
        ------
        ValueError, RuntimeError
            As ``get_ppl``.
        """
        return prompt_logits(self.engine, input_ids)

    def embed(
        self,
        texts: str | Sequence[str],
        *,
        prompt_name: str | None = None,
        dimensions: int | None = None,
        truncate: bool = False,
        task: str | None = None,
    ) -> "np.ndarray[Any, np.dtype[np.float32]]":
        """Return the embedding of each text, with the pooling and layers that the checkpoint specifies.

        Parameters
        ----------
        texts
            A text, or several.
        prompt_name
            Name of the model's prompt to prepend to each text; None: its default prompt, if any.
        dimensions
            Number of dimensions to keep (Matryoshka embeddings), with renormalization; None: all.
        truncate
            Truncate texts that exceed the model's context length, which is an error otherwise.
        task
            Name of one of the model's task adapters (Jina embeddings v3), with the prompt of its name unless
            ``prompt_name`` is given; None: no adapter.

        Returns
        -------
        numpy.ndarray
            ``[texts, dimensions]`` float32, or ``[dimensions]`` for a single text.

        Raises
        ------
        ValueError
            If the model has no embeddings, a text is too long, or a prompt name, size or task is unknown.
        """
        is_one, batch = _as_batch(texts)
        vectors = embed_texts(self.engine, self.tokenizer, batch, prompt_name, dimensions, truncate, task)
        return vectors[0] if is_one else vectors

    def embed_tokens(
        self, texts: str | Sequence[str], *, prompt_name: str | None = None, truncate: bool = False
    ) -> "list[np.ndarray[Any, np.dtype[np.float32]]] | np.ndarray[Any, np.dtype[np.float32]]":
        """Return an embedding per token of each text (multi-vector embeddings, for late interaction).

        Parameters
        ----------
        texts, prompt_name, truncate
            As in ``embed``.

        Returns
        -------
        list of numpy.ndarray
            ``[tokens, dimensions]`` float32 each, or a single array for a single text. Models with a layer for them
            (BGE-M3, ColBERT) return vectors of length 1, BGE-M3 none for the first token; other encoders return the
            last hidden states.

        Raises
        ------
        ValueError
            If the model is not an encoder, a text is too long, or a prompt name is unknown.
        """
        is_one, batch = _as_batch(texts)
        vectors = token_vectors(self.engine, self.tokenizer, batch, prompt_name, truncate)
        return vectors[0] if is_one else vectors

    def embed_sparse(
        self, texts: str | Sequence[str], *, prompt_name: str | None = None, truncate: bool = False
    ) -> list[dict[int, float]] | dict[int, float]:
        """Return the sparse embedding of each text: nonzero weights by token id (BGE-M3, SPLADE).

        Parameters
        ----------
        texts, prompt_name, truncate
            As in ``embed``.

        Returns
        -------
        list of dict
            Positive weights by token id, in ascending order, for each text; a single dict for a single text.

        Raises
        ------
        ValueError
            If the model has no sparse embeddings, a text is too long, or a prompt name is unknown.
        """
        is_one, batch = _as_batch(texts)
        vectors = sparse_vectors(self.engine, self.tokenizer, batch, prompt_name, truncate)
        return vectors[0] if is_one else vectors

    def score(
        self, pairs: Sequence[tuple[str, str]], *, truncate: bool = False
    ) -> "np.ndarray[Any, np.dtype[np.float32]]":
        """Return the relevance of each pair: a reranker's score, or the cosine similarity of embeddings.

        Parameters
        ----------
        pairs
            Query and document of each pair.
        truncate
            As in ``embed``; the longer text is truncated.

        Returns
        -------
        numpy.ndarray
            ``[pairs]`` float32, after the activation function that the config specifies.

        Raises
        ------
        ValueError
            If the model has no scores, or a pair is too long.
        """
        return score_pairs(self.engine, self.tokenizer, pairs, truncate)


def _as_batch(texts: str | Sequence[str]) -> tuple[bool, list[str]]:
    """Return whether a single text is given, and a list of texts."""
    return (True, [texts]) if isinstance(texts, str) else (False, list(texts))
