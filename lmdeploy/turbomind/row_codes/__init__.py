"""Checkpoints whose linear layers are stored output by output, as codes in groups or as 4-bit floats."""

from lmdeploy.turbomind.row_codes.expressions import with_row_codes
from lmdeploy.turbomind.row_codes.schemes import RowScheme, row_schemes

__all__ = ["RowScheme", "row_schemes", "with_row_codes"]
