// Attention of prompts that follows its plan as FlashInfer's kernels do.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/cuda/prefill/prefill.h"
#include "kernels/types.h"
#include "testing/cuda_emulated/faults.h"

namespace turbomind::emulated {

namespace {

constexpr const char* kName = "prompts";
constexpr int kKeyTile = 96;

float upcast(uint16_t bits) {
  return to_float(bf16{bits});
}

// Where the key, or the value, of a position is from the first of the pool on.
size_t offset_of(const cuda::PrefillCall& call, int item, int position, int dim) {
  const int block = call.blocks[call.plan.first_block[item] + position / call.block_len];
  const int kv_head = call.plan.head[item] / (call.heads / call.kv_heads);
  return static_cast<size_t>(block) * call.block_stride +
         (static_cast<size_t>(kv_head) * call.block_len + position % call.block_len) * dim;
}

// One row of the item; `visited`: keys of whole tiles, whose values are multiplied by 0 where the row does not see
// them.
void attention_row(const cuda::PrefillCall& call, int item, int row, int visited, int dim, bool is_wrong) {
  const cuda::PrefillPlanView& plan = call.plan;
  const size_t offset = (static_cast<size_t>(plan.first_token[item] + row) * call.heads + plan.head[item]) * dim;
  const uint16_t* query = call.queries + static_cast<size_t>(plan.first_token[item] + row) * call.query_row_stride +
                          static_cast<size_t>(plan.head[item]) * call.query_head_stride;
  const int seen = plan.keys[item] - plan.rows[item] + row + (is_wrong ? 0 : 1);
  std::vector<float> scores;
  float top = -std::numeric_limits<float>::infinity();
  for (int p = 0; p < seen; ++p) {
    const uint16_t* key = call.keys + offset_of(call, item, p, dim);
    float score = 0;
    for (int d = 0; d < dim; ++d) score += upcast(query[d]) * upcast(key[d]);
    scores.push_back(score);
    top = std::max(top, score);
  }
  std::vector<float> sums(static_cast<size_t>(dim), 0.0f);
  float total = 0;
  for (int p = 0; p < visited; ++p) {
    const float weight = p < seen ? std::exp(scores[static_cast<size_t>(p)] - top) : 0.0f;
    total += weight;
    const float rounded = to_float(to_bf16(weight));
    const uint16_t* value = call.values + offset_of(call, item, p, dim);
    for (int d = 0; d < dim; ++d) sums[static_cast<size_t>(d)] += rounded * upcast(value[d]);
  }
  for (int d = 0; d < dim; ++d) call.out[offset + d] = to_bf16(sums[static_cast<size_t>(d)] / total).bits;
}

void attention_tile(const cuda::PrefillCall& call, int item, int tile_rows, int dim, bool is_wrong) {
  const cuda::PrefillPlanView& plan = call.plan;
  const int first = plan.tile[item] * tile_rows;
  const int tile_end = plan.keys[item] - plan.rows[item] + first + tile_rows;
  // Keys of a tile beyond the sequence are read as 0.
  const int visited = std::min(plan.keys[item], cuda::divide_up(tile_end, kKeyTile) * kKeyTile);
  for (int row = first; row < std::min(first + tile_rows, plan.rows[item]); ++row) {
    attention_row(call, item, row, visited, dim, is_wrong);
  }
}

bool runs_on(int) {
  return library(kName) != Library::kNone;
}

template <int kDim, int kTileRows>
void run(cudaStream_t, const cuda::PrefillCall& call) {
  cuda::check(begin_call("cudaLaunchKernel"), "attention of prompts by an emulated library");
  submit([call, is_wrong = library(kName) == Library::kWrong] {
    count_library_launch(kName);
    for (int item = 0; item < call.plan.first_item[call.plan.multiprocessors]; ++item) {
      attention_tile(call, item, kTileRows, kDim, is_wrong);
    }
  });
}

const bool is_added =
    cuda::add_library_kernel(cuda::PrefillKernel{"an emulated library", 64, 192, runs_on, run<64, 192>}) &&
    cuda::add_library_kernel(cuda::PrefillKernel{"an emulated library", 128, 128, runs_on, run<128, 128>});

}  // namespace

}  // namespace turbomind::emulated
