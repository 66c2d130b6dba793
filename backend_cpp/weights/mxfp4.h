// MXFP4 (OCP Microscaling Formats 1.0, 5.2): 4-bit floats, 32 of which share a power of two.
//
//   codes   U8 [..., blocks, 16]   value 2 j of a block in the low half of byte j, value 2 j + 1 in the high half;
//                                  a code is sign, two bits of exponent, one of mantissa: 0, .5, 1, 1.5, 2, 3, 4, 6
//   scales  U8 [..., blocks]       2^(scale - 127); 255 is NaN
#pragma once

#include "weights/checkpoint_tensor.h"

namespace turbomind {

// BF16 [..., 32 blocks]; exact, but for values beyond bfloat16's range. Throws Error for shapes that do not fit.
CheckpointTensor decode_mxfp4(const CheckpointTensor& codes, const CheckpointTensor& scales);

}  // namespace turbomind
