// Latent attention that follows its plan as FlashInfer's kernels do.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/cuda/latent/latent.h"
#include "kernels/types.h"
#include "testing/cuda_emulated/faults.h"

namespace turbomind::emulated {

namespace {

using cuda::kLatentKey;
using cuda::kLatentRank;
using cuda::kLatentRope;
using cuda::kLatentTile;

constexpr const char* kName = "latents";

constexpr int kKeyTile = 64;

float upcast(uint16_t bits) {
  return to_float(bf16{bits});
}

const uint16_t* key_of(const cuda::LatentCall& call, int item, int position) {
  const int block = call.blocks[call.plan.first_block[item] + position / call.block_len];
  return call.keys + static_cast<size_t>(block) * call.block_stride + position % call.block_len * kLatentKey;
}

// One packed row of an item: its sum, divided by its weights, and the binary logarithm of these.
void attention_row(const cuda::LatentCall& call, int item, int packed, int last_key, float (&sums)[kLatentRank],
                   float& lse) {
  const cuda::LatentPlanView& plan = call.plan;
  const int row = packed / call.heads;
  const size_t query_row = static_cast<size_t>(plan.first_token[item] + row) * call.heads + packed % call.heads;
  const uint16_t* query = call.queries + query_row * kLatentKey;
  const int seen = std::min(last_key, plan.keys[item] - plan.rows[item] + row + 1);
  std::vector<float> scores;
  float top = -std::numeric_limits<float>::infinity();
  for (int p = plan.first_key[item]; p < seen; ++p) {
    const uint16_t* key = key_of(call, item, p);
    float score = 0;
    for (int d = 0; d < kLatentKey; ++d) score += upcast(query[d]) * upcast(key[d]);
    scores.push_back(score);
    top = std::max(top, score);
  }
  std::fill_n(sums, kLatentRank, 0.0f);
  float total = 0;
  for (size_t i = 0; i < scores.size(); ++i) {
    const float weight = std::exp(scores[i] - top);
    total += weight;
    const uint16_t* value = key_of(call, item, plan.first_key[item] + static_cast<int>(i)) + kLatentRope;
    const float rounded = to_float(to_bf16(weight));
    for (int d = 0; d < kLatentRank; ++d) sums[d] += rounded * upcast(value[d]);
  }
  for (float& sum : sums) sum = scores.empty() ? 0.0f : sum / total;
  lse = scores.empty() ? -std::numeric_limits<float>::infinity() : std::log2(total) + top * 1.4426950408889634f;
}

void attention_part(const cuda::LatentCall& call, int item, int part, bool is_wrong) {
  const cuda::LatentPlanView& plan = call.plan;
  const int first = plan.first_packed[item];
  // The kernel's end of the keys that the tile's last row sees, in whole tiles of keys.
  const int tile_end = plan.keys[item] - plan.rows[item] + (first + plan.width * kLatentTile) / call.heads;
  const int end = std::min(plan.last_key[item], tile_end);
  const int tiles = cuda::divide_up(end, kKeyTile) - plan.first_key[item] / kKeyTile;
  const int visited = plan.first_key[item] + tiles * kKeyTile;
  const int last_key = std::min(plan.last_key[item], visited) - (is_wrong ? 1 : 0);
  for (int i = part * kLatentTile; i < (part + 1) * kLatentTile; ++i) {
    const int packed = first + i;
    if (packed >= plan.rows[item] * call.heads) return;
    float sums[kLatentRank];
    float lse;
    attention_row(call, item, packed, last_key, sums, lse);
    const int partial = plan.partial[item];
    const size_t to = partial < 0 ? static_cast<size_t>(plan.first_token[item]) * call.heads + packed
                                  : static_cast<size_t>(partial) + i;
    uint16_t* out = (partial < 0 ? call.out : call.partial_out) + to * kLatentRank;
    for (int d = 0; d < kLatentRank; ++d) out[d] = to_bf16(sums[d]).bits;
    if (partial >= 0) call.partial_lse[to] = lse;
  }
}

void merge(const cuda::LatentCall& call, int multiprocessor) {
  const cuda::LatentPlanView& plan = call.plan;
  for (int row = plan.merge_first[multiprocessor]; row < plan.merge_last[multiprocessor]; ++row) {
    const int first = plan.merge_partial_first[multiprocessor] + row - plan.merge_first[multiprocessor];
    float top = -std::numeric_limits<float>::infinity();
    for (int p = first; p < plan.merge_partial_last[multiprocessor]; p += plan.merge_stride[multiprocessor]) {
      top = std::max(top, call.partial_lse[p]);
    }
    float total = 0;
    float sums[kLatentRank] = {};
    for (int p = first; p < plan.merge_partial_last[multiprocessor]; p += plan.merge_stride[multiprocessor]) {
      const float weight = std::exp2(call.partial_lse[p] - top);
      total += weight;
      const uint16_t* part = call.partial_out + static_cast<size_t>(p) * kLatentRank;
      for (int d = 0; d < kLatentRank && weight > 0; ++d) sums[d] += weight * upcast(part[d]);
    }
    uint16_t* out = call.out + static_cast<size_t>(row) * kLatentRank;
    for (int d = 0; d < kLatentRank; ++d) out[d] = to_bf16(sums[d] / total).bits;
  }
}

bool runs_on(int) {
  return library(kName) != Library::kNone;
}

void run(cudaStream_t, const cuda::LatentCall& call) {
  cuda::check(begin_call("cudaLaunchCooperativeKernel"), "latent attention by an emulated library");
  submit([call, is_wrong = library(kName) == Library::kWrong] {
    count_library_launch(kName);
    for (int team = 0; team < call.plan.teams; ++team) {
      for (int item = call.plan.first_item[team]; item < call.plan.first_item[team + 1]; ++item) {
        for (int part = 0; part < call.plan.width; ++part) attention_part(call, item, part, is_wrong);
      }
    }
    for (int m = 0; m < call.plan.teams * call.plan.width; ++m) merge(call, m);
  });
}

const bool is_added = cuda::add_library_kernel(cuda::LatentKernel{"an emulated library", runs_on, run});

}  // namespace

}  // namespace turbomind::emulated
