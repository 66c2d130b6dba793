#include "kernels/cuda/attention/decode_plan.h"

#include <algorithm>
#include <cmath>

#include "kernels/cuda/attention/attention_task.cuh"

namespace turbomind::cuda {

namespace {

// Nanoseconds, fitted to an H100: what a block takes that computes nothing, and then for each turn of its warps however
// few blocks there are; for each further wave of blocks; and to put splits together.
constexpr float kStart = 4000;
constexpr float kTurn = 1200;
constexpr float kWave = 2500;
constexpr float kMerge = 3500;
constexpr float kMergeSplit = 150;
constexpr float kBytesOfNanosecond = 2900;
constexpr int kMaxWaves = 4;  // of launches with splits

// A full multiprocessor that is alone takes this share of the time that it takes when all are full: for bytes of int4
// the instructions are nearly the limit.
constexpr float alone(CacheType type) {
  return type == CacheType::kInt4 ? 0.75f : 0.3f;
}

struct Launch {
  int blocks;
  int slots;  // blocks that run at the same time
  int turns;  // of a warp, a tile each
  int splits;
};

// `full`: what a turn takes where all slots are taken and the memory is the limit. `min_time`: where one is.
float time_of(const Launch& launch, float full, float min_time) {
  const auto turn = [&](float share) {
    const float moved = std::max(full * share, min_time);
    return std::sqrt(kTurn * kTurn + moved * moved);
  };
  const int waves = launch.blocks / launch.slots;
  const int rest = launch.blocks % launch.slots;
  float turns = static_cast<float>(waves) * turn(1);
  if (rest > 0) turns += turn(static_cast<float>(rest) / static_cast<float>(launch.slots));
  const int further = divide_up(launch.blocks, launch.slots) - 1;
  float time = kStart + static_cast<float>(launch.turns) * turns + kWave * static_cast<float>(further);
  if (launch.splits > 1) time += kMerge + kMergeSplit * static_cast<float>(launch.splits);
  return time;
}

}  // namespace

DecodeCut decode_cut(const AttentionParams& params, int rows, int contexts, int seen) {
  const CacheLayout& layout = params.layout;
  const int tile = decode_tile(layout.type);
  const int resident = decode_warps(rows);
  const int multiprocessors = multiprocessor_count();
  const size_t token_bytes = 2 * layout.head_bytes(layout.key_dim) / static_cast<size_t>(layout.block_len);
  const float full =
      static_cast<float>(resident * multiprocessors * tile) * static_cast<float>(token_bytes) / kBytesOfNanosecond;
  DecodeCut best{};
  float min_time = INFINITY;
  for (const int warps : {resident, resident / 2, kMinDecodeWarps}) {
    const int slots = resident / warps * multiprocessors;
    const float min_turn = full * alone(layout.type) * static_cast<float>(warps) / static_cast<float>(resident);
    const int max_split_count = std::clamp(seen / (warps * tile), 1, kMaxSplits);
    for (int splits = 1; splits <= max_split_count; ++splits) {
      if (splits > 1 && contexts * splits > kMaxWaves * slots) break;
      const int turns = divide_up(seen, splits * warps * tile);
      const float time = time_of({contexts * splits, slots, turns, splits}, full, min_turn);
      if (time < min_time) {
        min_time = time;
        best = {warps, splits};
      }
    }
  }
  return best;
}

}  // namespace turbomind::cuda
