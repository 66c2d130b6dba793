"""Checkpoints quantized output by output, with grouped integers or 4-bit floats."""

from lmdeploy.turbomind.row_quantized.blocks import METHODS as BLOCK_METHODS
from lmdeploy.turbomind.row_quantized.blocks import with_block_quantized
from lmdeploy.turbomind.row_quantized.expressions import with_row_quantized
from lmdeploy.turbomind.row_quantized.schemes import RowScheme, row_schemes

__all__ = ["BLOCK_METHODS", "RowScheme", "row_schemes", "with_block_quantized", "with_row_quantized"]
