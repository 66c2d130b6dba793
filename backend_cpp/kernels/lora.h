// Low-rank adapters (LoRA, arXiv:2106.09685): y += scale (x A^T) B^T, where each row has its own adapter, or
// none. Rows of different adapters are multiplied together, as in S-LoRA (arXiv:2311.03285).
//
//   x [rows, in_features]        float32, row-major, densely packed
//   shrunk [rows, max_rank]      float32; of a row, the first `rank` numbers of its adapter: x A^T
//   y [rows, out_features]       float32, row-major, densely packed
//
// A is one matrix over all parts of a layer (q, k and v, or gate and up, are multiplied with x at once); B is a part by
// part, each for a run of the layer's outputs and a run of the shrunk numbers. No two parts share an output.
//
// Products and sums are float32; 16-bit weights are widened exactly. A shrunk number is summed as an output of `linear`
// is, and an output over its part's ranks in ascending order, then scaled and added to y. So a row's result is bitwise
// the same alone, alongside rows of whatever adapters, and in any chunk of a prompt.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/linear.h"
#include "kernels/operation.h"

namespace turbomind {

// B of some outputs.
struct LoraPart {
  const void* up = nullptr;  // [rank, out_features], row-major: B transposed
  int first_out = 0;
  int out_features = 0;
  int first_rank = 0;
  int rank = 0;
  float scale = 1;
};

// Low-rank update of one linear layer; none where rank is 0.
struct LoraWeight {
  const void* down = nullptr;  // [rank, in_features], row-major: A
  const LoraPart* parts = nullptr;
  int part_count = 0;
  int rank = 0;
  WeightFormat format = WeightFormat::kFloat32;  // of A and B; 32 or 16 bits
};

// The rows of a step, and which layer is run. What they lead to is the device's memory.
struct LoraRows {
  const LoraWeight* const* adapters = nullptr;  // [rows]: the layers of a row's adapter; null: it has none
  int layer = 0;                                // which of these layers
  int rows = 0;
  int max_rank = 0;  // no adapter of the rows has a layer of a higher rank
};

struct LoraShrink {
  static constexpr std::string_view kName = "lora_shrink";

  LoraRows rows;
  const float* x = nullptr;
  int in_features = 0;
  float* shrunk = nullptr;

  void run(ThreadPool& pool) const;
  void run(CudaStream stream) const;
};

// In place of LoraShrink where a row of x has a single 1, in column inputs[row]: of tables of embeddings, which have
// adapters where the device shares the host's memory.
struct LoraGather {
  static constexpr std::string_view kName = "lora_gather";

  LoraRows rows;
  const int32_t* inputs = nullptr;
  int in_features = 0;
  float* shrunk = nullptr;

  void run(ThreadPool& pool) const;
};

struct LoraExpand {
  static constexpr std::string_view kName = "lora_expand";

  LoraRows rows;
  const float* shrunk = nullptr;
  int out_features = 0;
  float* y = nullptr;

  void run(ThreadPool& pool) const;
  void run(CudaStream stream) const;
};

}  // namespace turbomind
