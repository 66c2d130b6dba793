"""The texts that formats are scored on: short pieces of many kinds, written for this and printed nowhere else."""

from pathlib import Path

from lmdeploy.tokenizer import Tokenizer

TEXTS = Path(__file__).with_name("texts.txt")
BETWEEN = "\n----\n"  # in the file


def read_pieces(path: Path = TEXTS) -> list[str]:
    """Return the pieces of a file, which a line of four dashes divides.

    Raises
    ------
    ValueError
        There is no text in it.
    """
    pieces = [piece.strip() for piece in path.read_text(encoding="utf-8").split(BETWEEN)]
    if not any(pieces):
        raise ValueError(f"{path} holds no text; expected pieces of text, a line of four dashes between them")
    return [piece for piece in pieces if piece]


def encoded(tokenizer: Tokenizer, pieces: list[str], most: int) -> list[list[int]]:
    """Return the pieces as token ids, as the model would see them as prompts, cut to ``most`` tokens each."""
    return [tokenizer.encode(piece)[:most] for piece in pieces]
