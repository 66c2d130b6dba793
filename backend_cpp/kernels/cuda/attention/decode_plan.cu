#include "kernels/cuda/attention/decode_plan.h"

#include <algorithm>
#include <cmath>

namespace turbomind::cuda {

namespace {

// Nanoseconds, on an H100: what a block takes that computes nothing, and then for each turn of its warps however few
// blocks there are; for each further wave of blocks; and to put splits together.
constexpr float kStart = 4000;
constexpr float kTurn = 1200;
constexpr float kWave = 1500;
constexpr float kMerge = 2000;
constexpr float kMergeSplit = 60;
constexpr float kBytesOfNanosecond = 2900;
constexpr int kMaxWaves = 4;  // of launches with splits

struct Launch {
  int blocks;
  int slots;  // blocks that run at the same time
  int turns;  // of a warp, a tile each
  int splits;
};

// `full`: what a turn takes where all slots are taken and the memory is the limit.
float time_of(const Launch& launch, float full) {
  const auto turn = [&](float share) { return std::sqrt(kTurn * kTurn + full * share * full * share); };
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
  float least = INFINITY;
  for (const int warps : {resident, resident / 2, kLeastDecodeWarps}) {
    const int slots = resident / warps * multiprocessors;
    const int most = std::clamp(seen / (warps * tile), 1, kMaxDecodeSplits);
    for (int splits = 1; splits <= most; ++splits) {
      if (splits > 1 && contexts * splits > kMaxWaves * slots) break;
      const int turns = divide_up(seen, splits * warps * tile);
      const float time = time_of({contexts * splits, slots, turns, splits}, full);
      if (time < least) {
        least = time;
        best = {warps, splits};
      }
    }
  }
  return best;
}

}  // namespace turbomind::cuda
