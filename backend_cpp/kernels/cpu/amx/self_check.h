// Whether tiles do what they are taken to do.
#pragma once

#include "kernels/cpu/isa.h"

namespace turbomind {

// Whether small products with int8, int4 and bfloat16 weights are bitwise those of another table. Asked once, before a
// table with tiles is used: what is wrong on a processor nobody has tried must not reach a response.
bool has_same_products(const KernelTable& table, const KernelTable& reference);

}  // namespace turbomind
