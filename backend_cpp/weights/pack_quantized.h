// From a checkpoint's codes to the order the kernels read (kernels/packed_weight.h), without loss.
#pragma once

#include <vector>

#include "weights/linear_storage.h"
#include "weights/manifest_value.h"

namespace turbomind {

// Whether the kernels can multiply with these parts of a matrix as they are stored: all are codes that pack together,
// and have minima only where the device takes those.
bool can_pack(const std::vector<ManifestValue>& parts, bool takes_mins);

// Packs matrices joined by output.
LinearStorage pack_quantized(const std::vector<ManifestValue>& parts, const Loop& loop);

}  // namespace turbomind
