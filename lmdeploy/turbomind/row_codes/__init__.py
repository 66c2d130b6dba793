"""Checkpoints quantized output by output, with grouped integers or 4-bit floats."""

from lmdeploy.turbomind.row_codes.expressions import with_row_codes
from lmdeploy.turbomind.row_codes.schemes import RowScheme, row_schemes

__all__ = ["RowScheme", "row_schemes", "with_row_codes"]
