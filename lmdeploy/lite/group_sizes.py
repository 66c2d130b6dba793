"""How many neighbouring inputs of a weight share a scale."""

import logging
from collections.abc import Mapping

logger = logging.getLogger(__name__)

USUAL = (128, 64, 32, 16, 8)
WHOLE_ROW = -1


def check_group_size(size: int | None) -> None:
    """Raise ``ValueError`` for a size that no file of AWQ or GPTQ codes can have; None: it is chosen."""
    if size is not None and size != WHOLE_ROW and (size < 8 or size % 8):
        raise ValueError(f"w_group_size must be -1 or a multiple of 8, got {size}")


def fitting_group_size(wanted: int | None, shapes: Mapping[str, tuple[int, int]]) -> int:
    """Return the size of groups for weights ``[out, in]``: that wanted, or the largest usual one that fits them all.

    Raises
    ------
    ValueError
        If that wanted does not divide every layer's inputs; names a weight and the sizes that do.
    """
    fitting = [size for size in USUAL if all(columns % size == 0 for _, columns in shapes.values())]
    if wanted is None:
        size = fitting[0] if fitting else WHOLE_ROW
        logger.info("w_group_size is %d, the largest that divides the inputs of every layer", size)
        return size
    if wanted == WHOLE_ROW:
        return wanted
    for name, (_, columns) in shapes.items():
        if columns % wanted:
            sizes = ", ".join(map(str, (WHOLE_ROW, *fitting)))
            raise ValueError(
                f"{name} has {columns} inputs, no multiple of w_group_size {wanted}; these would do: {sizes}; without "
                "w_group_size the largest of them is taken"
            )
    return wanted
