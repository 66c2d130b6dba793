"""Checkpoints quantized output by output, with grouped integers or 4-bit floats."""

from lmdeploy.turbomind.row_codes.blocks import METHODS as BLOCK_METHODS
from lmdeploy.turbomind.row_codes.blocks import with_block_codes
from lmdeploy.turbomind.row_codes.expressions import with_row_codes
from lmdeploy.turbomind.row_codes.schemes import RowScheme, row_schemes

__all__ = ["BLOCK_METHODS", "RowScheme", "row_schemes", "with_block_codes", "with_row_codes"]
