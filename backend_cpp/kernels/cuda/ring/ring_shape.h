// Work partition of ring_linear.
#pragma once

#include <algorithm>

#include "kernels/linear.h"
#include "kernels/packed_weight.h"

namespace turbomind::cuda {

inline constexpr int kRingUnit = 128;  // inputs of a step
inline constexpr int kTeamTiles = 4;   // of outputs
inline constexpr int kMaxRingStages = 16;
inline constexpr int kRingHeadBytes = 512;

// A block takes items one after another: some tiles of outputs, some rows, and some of the inputs.
struct RingPlan {
  int tiles;      // of outputs, of an item
  int across;     // teams that share these
  int ways;       // teams that share an item's inputs
  int splits;     // items that share inputs
  int row_parts;  // of kColumns rows
  int items;
  int units;   // of kRingUnit inputs
  int stages;  // of activations
  int shared_bytes;
  int lag;  // steps after which a stage is filled again
};

template <class Ring>
RingPlan ring_plan(const LinearWeight& weight, int rows, int tiles, int splits, int shared_memory) {
  const PackedShape shape = packed_shape(weight);
  RingPlan plan{};
  plan.tiles = tiles;
  plan.across = (tiles + kTeamTiles - 1) / kTeamTiles;
  plan.splits = splits;
  plan.row_parts = (rows + Ring::kColumns - 1) / Ring::kColumns;
  plan.items = (shape.tiles() + tiles - 1) / tiles * splits * plan.row_parts;
  plan.units = shape.padded_features() / kRingUnit;
  // As many ways as there are stages for: each has two or more.
  for (plan.ways = Ring::kTeams / plan.across;; --plan.ways) {
    const int others = kRingHeadBytes + Ring::kQuantizedRingBytes + Ring::sum_bytes(plan.across, plan.ways);
    const int stages = std::min((shared_memory - others) / Ring::kXBytes, kMaxRingStages);
    plan.stages = stages / plan.ways * plan.ways;
    plan.shared_bytes = others + plan.stages * Ring::kXBytes;
    if (plan.ways == 1 || plan.stages >= 2 * plan.ways) break;
  }
  plan.lag = plan.across > 1 && plan.stages / plan.ways > 3 ? 2 : 1;
  return plan;
}

// An estimate in nanoseconds, fitted to an H100: a step takes its instructions' or its bytes' time, whichever is
// longer.
template <class Ring>
float ring_cost(const RingPlan& plan, int multiprocessors) {
  constexpr float kQuantizedBytesPerNanosecond = 23;  // a multiprocessor's share of the memory's bandwidth
  constexpr float kBytesPerNanosecond = 40;           // and of the second-level cache's
  const int rounds = (plan.items + multiprocessors - 1) / multiprocessors;
  const int units = (plan.units + plan.splits - 1) / plan.splits;
  const int steps = (units + plan.ways - 1) / plan.ways;
  const auto quantized = static_cast<float>(plan.ways * plan.tiles * (Ring::kQuantizedBytes - Ring::kGapBytes));
  const auto x = static_cast<float>(plan.ways * Ring::kXBytes);
  const bool is_int4 = Ring::kFormat == WeightFormat::kInt4;
  const float instructions = (is_int4 ? 700.0f : 980.0f) + (is_int4 ? 8.8f : 11.0f) * Ring::kColumns;
  const float busy = static_cast<float>(plan.ways * plan.across) / 4;
  const float step = std::max({instructions * (0.4f + 0.6f * busy), quantized / kQuantizedBytesPerNanosecond,
                               (quantized + x) / kBytesPerNanosecond});
  float cost = static_cast<float>(rounds) * (static_cast<float>(steps) * step + 300.0f);
  if (plan.ways > 1) cost += 800.0f;
  if (plan.splits > 1) cost += 2200.0f + static_cast<float>(Ring::kColumns * (70 + 6 * plan.splits));
  return cost;
}

template <class Ring>
RingPlan choose_ring(const LinearWeight& weight, int rows, int multiprocessors, int shared_memory) {
  RingPlan best{};
  float best_cost = 0;
  const int tiles = packed_shape(weight).tiles();
  for (int of_item = 1; of_item <= std::min(tiles, Ring::kTeams * kTeamTiles); ++of_item) {
    for (int splits = 1; splits <= 16; ++splits) {
      const RingPlan plan = ring_plan<Ring>(weight, rows, of_item, splits, shared_memory);
      if (plan.stages < 2 || (splits > 1 && splits * 2 > plan.units)) continue;
      if (splits > 1 && plan.items > multiprocessors) continue;
      const float cost = ring_cost<Ring>(plan, multiprocessors);
      if (best.items == 0 || cost < best_cost) best = plan, best_cost = cost;
    }
  }
  return best;
}

}  // namespace turbomind::cuda
