// From a checkpoint's codes to the order the kernels read (kernels/packed_weight.h), without loss.
#pragma once

#include <vector>

#include "model/linear_storage.h"
#include "model/stored_value.h"

namespace turbomind {

// Whether the kernels can multiply with these parts of a matrix as they are stored: all are codes, with the same bits,
// groups and input order.
bool can_pack(const std::vector<StoredValue>& parts);

// The inputs that share a scale in a packed matrix whose stored groups are of so many: the largest divisor of these
// that the kernels take.
int kernel_group(int stored_group);

// Packs matrices joined by output. A group of many inputs becomes several of the kernel's with the same scale, so that
// activations are rounded in groups of at most 128.
LinearStorage pack_stored_codes(const std::vector<StoredValue>& parts, const Loop& loop);

}  // namespace turbomind
