// What weights want their rows made into where products are made in vectors. Included by kernels_isa.cc only.
#pragma once

#include <algorithm>
#include <bit>

#include "kernels/cpu/isa.h"
#include "kernels/packed_weight.h"

namespace turbomind::TM_ISA {

inline constexpr int kTogetherRows = 8;

// Up to eight rows lie together, four inputs of each; the last rows may be missing.
inline RowsPlan rows_plan_in_vectors(const LinearWeight& weight, int rows) {
  RowsPlan plan;
  if (!weight.is_packed()) return plan;
  plan.kind = weight.format == WeightFormat::kFloat8 ? RowsPlan::Kind::kWide : RowsPlan::Kind::kRounded;
  plan.layout.interleave = static_cast<int>(std::bit_ceil(static_cast<unsigned>(std::min(rows, kTogetherRows))));
  plan.layout.features = static_cast<size_t>(packed_shape(weight).padded_features());
  return plan;
}

}  // namespace turbomind::TM_ISA
