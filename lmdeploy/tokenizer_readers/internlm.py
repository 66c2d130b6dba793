"""InternLM, InternLM2 and Baichuan: a SentencePiece model, and tokens that ``tokenizer_config.json`` adds to it."""

from typing import Any

from sentencepiece import SentencePieceProcessor

from lmdeploy.tokenizer_readers.pieces import PieceTokenizer
from lmdeploy.tokenizer_readers.settings import TokenizerSettings


def read(settings: TokenizerSettings) -> Any:
    """Return the tokenizer, which puts bos before every text unless the settings say otherwise.

    Raises
    ------
    ValueError
        If the settings name a token that neither they nor the model have.
    """
    model = SentencePieceProcessor(model_file=str(settings.file("tokenizer.model")))
    added = settings.added_tokens
    ids = {model.id_to_piece(token): token for token in range(model.get_piece_size()) if model.is_control(token)}
    ids |= {token.content: number for number, token in added.items()}
    bos, eos = (_token(settings, model, role, ids) for role in ("bos_token", "eos_token"))
    return PieceTokenizer(
        model,
        added,
        {text: [number] for text, number in ids.items()},
        [ids[bos]] if bos is not None and settings.content.get("add_bos_token", True) else [],
        bos_token=bos,
        eos_token=eos,
    )


def _token(settings: TokenizerSettings, model: Any, role: str, ids: dict[str, int]) -> str | None:
    """Return the text of the token with a role, as the settings or else the model name it; None if neither does."""
    text = settings.token(role)
    if text and text not in ids:
        raise ValueError(f"{role} of tokenizer_config.json must be a special token, got {text!r}")
    number = {"bos_token": model.bos_id(), "eos_token": model.eos_id()}[role]
    return text or (model.id_to_piece(number) if number >= 0 else None)
