#include <algorithm>

#include "kernels/cuda/elementwise/activation.h"
#include "kernels/cuda/grouped/grouped_product.h"
#include "kernels/cuda/linear/linear_kernels.h"
#include "kernels/cuda/linear/weight_slab.cuh"
#include "kernels/cuda/moe/moe.h"
#include "kernels/cuda/moe/sort_experts.h"
#include "kernels/cuda/rounding/round_rows.h"

// Rows are sorted by expert; two grouped products with the activation between them; and each row of y gathers what its
// experts made of it.

namespace turbomind::cuda {

namespace {

constexpr int kThreads = 128;
constexpr int kMostExpertsOfRow = 32;

// Blocks of kThreads outputs; blockIdx.x is the row.
__global__ void __launch_bounds__(kThreads)
    add_shares_kernel(const float* outputs, const int32_t* slots, const int32_t* chosen, const float* weights,
                      int top_k, int hidden, float* y) {
  await_previous();
  __shared__ int32_t order[kMostExpertsOfRow];  // the row's pairs, by ascending expert
  const int first_pair = blockIdx.x * top_k;
  if (chosen[first_pair] < 0) return;  // and so are the row's others
  if (static_cast<int>(threadIdx.x) < top_k) {
    const int own = chosen[first_pair + threadIdx.x];
    int rank = 0;
    for (int k = 0; k < top_k; ++k) rank += chosen[first_pair + k] < own ? 1 : 0;
    order[rank] = first_pair + threadIdx.x;
  }
  __syncthreads();
  const int i = blockIdx.y * kThreads + threadIdx.x;
  if (i >= hidden) return;
  float* target = y + static_cast<size_t>(blockIdx.x) * hidden + i;
  float sum = *target;
  for (int k = 0; k < top_k; ++k) {
    const int pair = order[k];
    sum += weights[pair] * outputs[static_cast<size_t>(slots[pair]) * hidden + i];
  }
  *target = sum;
}

// One of an expert's two products, of all pairs.
struct ExpertProduct {
  const LinearWeight& first;   // the first expert's
  const std::byte* on_device;  // the same, on the device
  const float* x;
  const int32_t* sources;  // row of x of each pair; null: its own
  int x_rows;
  float* y;  // [pairs, out_features]
};

// gathered[slot] = the inputs of a pair in the order of its expert's codes; blockIdx.x is the slot.
__global__ void __launch_bounds__(kThreads)
    order_inputs_kernel(const float* x, const int32_t* sources, const int32_t* experts, const std::byte* weights,
                        int inputs, int padded_inputs, float* gathered) {
  await_previous();
  const int i = blockIdx.y * kThreads + threadIdx.x;
  const int slot = blockIdx.x;
  if (i >= padded_inputs || experts[slot] < 0) return;
  const auto* weight = reinterpret_cast<const LinearWeight*>(weights + experts[slot] * sizeof(ExpertWeight));
  const float* row = x + static_cast<size_t>(sources != nullptr ? sources[slot] : slot) * inputs;
  gathered[static_cast<size_t>(slot) * padded_inputs + i] = i < inputs ? row[weight->input_order[i]] : 0.0f;
}

enum class Kernel { kPlain, kStream, kTile, kLibrary };

Kernel kernel_for(const ExpertTable& experts, int rows, int top_k) {
  const ExpertWeight& weight = experts.first;
  if (experts.library != nullptr && experts.library->type == library_type(experts, rows, top_k)) {
    return Kernel::kLibrary;
  }
  if (!has_whole_chunks(weight.gate_up) || !has_whole_chunks(weight.down)) return Kernel::kPlain;
  return rows <= kStreamRows ? Kernel::kStream : Kernel::kTile;
}

int part_rows_of(Kernel kernel, int rows, int pairs, int num_experts) {
  if (kernel == Kernel::kLibrary) return pairs;  // an expert's are not divided
  if (kernel == Kernel::kPlain) return kPlainRows;
  if (kernel == Kernel::kStream) return rows <= kStreamRows / 2 ? kStreamRows / 2 : kStreamRows;
  return pairs / num_experts <= kTileRows / 2 ? kTileRows / 2 : kTileRows;
}

void multiply(cudaStream_t stream, const LinearScratch& scratch, const ExpertTable& experts, Kernel kernel,
              int part_rows, int pairs, const SortedPairs& sorted, ExpertProduct product) {
  const LinearWeight& weight = product.first;
  Scratch memory = scratch.memory;
  if (kernel == Kernel::kLibrary) {
    return grouped_product(stream, memory, *experts.library,
                           {weight, product.on_device, sizeof(ExpertWeight), experts.count, sorted.parts,
                            sorted.part_count, product.x, product.sources, sorted.experts, pairs, product.y});
  }
  const int padded = padded_inputs(weight);
  LinearTask task;
  task.weight = weight;
  task.x_stride = weight.in_features;
  task.y = product.y;
  task.y_stride = weight.out_features;
  task.rows = pairs;
  task.expert_weights = product.on_device;
  task.expert_stride = sizeof(ExpertWeight);
  task.expert_rows = sorted.parts;
  task.part_count = sorted.part_count;
  task.counters = scratch.counters;

  if (weight.input_order != nullptr) {
    auto* ordered = memory.take<float>(static_cast<size_t>(pairs) * padded);
    launch(order_inputs_kernel, rows_and(pairs, divide_up(padded, kThreads)), dim3(kThreads), 0, stream, product.x,
           product.sources, sorted.experts, product.on_device, weight.in_features, padded, ordered);
    product.x = ordered;
    product.x_rows = pairs;
    product.sources = nullptr;
    task.x_stride = padded;
  }
  const RowsToRound from{
      product.x, product.x_rows, task.x_stride, 1, 0, static_cast<int>(std::min<size_t>(task.x_stride, padded)),
      nullptr};
  task.x = product.x;
  task.sources = product.sources;
  if (kernel == Kernel::kPlain) return plain_linear(stream, task, sorted.part_limit);
  if (kernel == Kernel::kStream) {
    if (task.x_stride % 4 != 0) {
      auto* gathered = memory.take<float>(static_cast<size_t>(from.rows) * padded);
      gather_inputs(stream, from, padded, gathered);
      task.x = gathered;
      task.x_stride = padded;
    }
    return stream_linear(stream, memory, task, part_rows, sorted.part_limit);
  }
  auto* rounded = memory.take<uint16_t>(static_cast<size_t>(from.rows) * padded);
  const ChunkOrder order = weight.format == WeightFormat::kInt4 ? ChunkOrder::kInt4 : ChunkOrder::kPlain;
  round_rows(stream, from, weight.format, order, padded, rounded);
  task.x = rounded;
  task.x_stride = padded;
  tile_linear(stream, memory, task, part_rows, sorted.part_limit);
}

}  // namespace

GroupedType library_type(const ExpertTable& experts, int rows, int top_k) {
  const GroupedType type = grouped_type(experts.first.gate_up);
  if (type == GroupedType::kNone || grouped_type(experts.first.down) != type) return GroupedType::kNone;
  const int least = type == GroupedType::kFloat8 ? kLeastFloat8GroupRows : kLeastGroupRows;
  return rows * top_k >= least * experts.count ? type : GroupedType::kNone;
}

size_t expert_scratch_bytes(const ExpertTable& experts, int rows, int top_k) {
  const auto& [gate_up, down] = experts.first;
  const auto pairs = static_cast<size_t>(rows) * top_k;
  const auto inputs = static_cast<size_t>(std::max(padded_inputs(gate_up), padded_inputs(down)));
  size_t of_products =
      scratch_bytes<float>(pairs * inputs) + scratch_bytes<uint16_t>(pairs * inputs) + split_scratch_bytes();
  if (experts.library != nullptr) {
    for (const LinearWeight* weight : {&gate_up, &down}) {
      of_products = std::max(of_products, grouped_scratch_bytes(*weight, experts.count, rows * top_k));
    }
  }
  return sorted_pairs_bytes(rows, top_k, experts.count) + scratch_bytes<float>(pairs * gate_up.out_features) +
         scratch_bytes<float>(pairs * down.in_features) + scratch_bytes<float>(pairs * down.out_features) + of_products;
}

void add_experts(cudaStream_t stream, const LinearScratch& scratch, Activation activation, const ExpertTable& experts,
                 const float* x, int rows, int top_k, const int32_t* chosen, const float* weights, float* y) {
  if (rows == 0) return;
  if (top_k > kMostExpertsOfRow) {
    throw internal_error("a row can go to at most " + std::to_string(kMostExpertsOfRow) + " experts on a GPU, got " +
                         std::to_string(top_k));
  }
  const auto& [gate_up, down] = experts.first;
  const int pairs = rows * top_k;
  const int hidden = down.out_features;
  const Kernel kernel = kernel_for(experts, rows, top_k);
  const int part_rows = part_rows_of(kernel, rows, pairs, experts.count);
  LinearScratch inner = scratch;
  const SortedPairs sorted = take_pairs(inner.memory, rows, top_k, experts.count, part_rows);
  auto* halves = inner.memory.take<float>(static_cast<size_t>(pairs) * gate_up.out_features);
  auto* activated = inner.memory.take<float>(static_cast<size_t>(pairs) * down.in_features);
  auto* outputs = inner.memory.take<float>(static_cast<size_t>(pairs) * hidden);
  const auto* table = reinterpret_cast<const std::byte*>(experts.on_device);

  sort_by_expert(stream, chosen, rows, top_k, experts.count, part_rows, sorted);
  multiply(stream, inner, experts, kernel, part_rows, pairs, sorted,
           {gate_up, table + offsetof(ExpertWeight, gate_up), x, sorted.rows, rows, halves});
  activate_gated(stream, activation, halves, pairs, down.in_features, activated);
  multiply(stream, inner, experts, kernel, part_rows, pairs, sorted,
           {down, table + offsetof(ExpertWeight, down), activated, nullptr, pairs, outputs});
  launch(add_shares_kernel, rows_and(rows, divide_up(hidden, kThreads)), dim3(kThreads), 0, stream, outputs,
         sorted.slots, chosen, weights, top_k, hidden, y);
}

}  // namespace turbomind::cuda
