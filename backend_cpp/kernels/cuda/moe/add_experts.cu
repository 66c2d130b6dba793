#include <algorithm>

#include "kernels/cuda/elementwise/elementwise.h"
#include "kernels/cuda/elementwise/row_norm.cuh"
#include "kernels/cuda/grouped/grouped_gemm.h"
#include "kernels/cuda/linear/linear_task.cuh"
#include "kernels/cuda/linear/weight_slab.cuh"
#include "kernels/cuda/moe/moe.h"
#include "kernels/cuda/moe/sort_experts.h"
#include "kernels/cuda/quantize/round_rows.h"
#include "kernels/cuda/upcast.cuh"

// Rows are sorted by expert; two grouped products with the activation between them; and each row of y gathers what its
// experts made of it. Where there are many rows the activation is made where the second product's inputs are rounded,
// and a library's products are of 16 bits.

namespace turbomind::cuda {

namespace {

constexpr int kThreads = 128;
constexpr int kMaxExpertsOfRow = 32;

template <class Element, int kCount>
struct alignas(std::min(sizeof(Element) * kCount, sizeof(uint4))) Few {
  Element values[kCount];
};

// A thread has kCount neighbouring outputs of a row, blockIdx.x.
template <class Element, int kCount>
__global__ void __launch_bounds__(kThreads)
    add_shares_kernel(const Element* outputs, const int32_t* slots, const int32_t* chosen, const float* weights,
                      int top_k, int hidden, float* y) {
  await_previous();
  __shared__ int32_t order[kMaxExpertsOfRow];  // the row's pairs, by ascending expert
  const int first_pair = blockIdx.x * top_k;
  if (chosen[first_pair] < 0) return;  // and so are the row's others
  if (static_cast<int>(threadIdx.x) < top_k) {
    const int chosen_expert = chosen[first_pair + threadIdx.x];
    int rank = 0;
    for (int k = 0; k < top_k; ++k) rank += chosen[first_pair + k] < chosen_expert ? 1 : 0;
    order[rank] = first_pair + threadIdx.x;
  }
  __syncthreads();
  const int i = (blockIdx.y * kThreads + threadIdx.x) * kCount;
  if (i >= hidden) return;
  auto* target = reinterpret_cast<Few<float, kCount>*>(y + static_cast<size_t>(blockIdx.x) * hidden + i);
  Few<float, kCount> sums = *target;
#pragma unroll 4
  for (int k = 0; k < top_k; ++k) {
    const int pair = order[k];
    const auto shares =
        *reinterpret_cast<const Few<Element, kCount>*>(outputs + static_cast<size_t>(slots[pair]) * hidden + i);
#pragma unroll
    for (int c = 0; c < kCount; ++c) sums.values[c] += weights[pair] * upcast(shares.values[c]);
  }
  *target = sums;
}

// One of an expert's two products, of all pairs.
struct ExpertGemm {
  const LinearWeight& first;   // the first expert's
  const std::byte* on_device;  // the same, on the device
  LinearInput x;               // gated: only if makes_activation
  int x_rows;
  const SortedPairs* sources;  // where rows of x go; null: each is that of a pair
  void* y;                     // [pairs, out_features] of result_type
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

enum class Kernel { kReference, kGemv, kTile, kLibrary };

Kernel kernel_for(const ExpertTable& experts, int rows, int top_k) {
  const ExpertWeight& weight = experts.first;
  if (experts.library != nullptr && experts.library->type == library_type(experts, rows, top_k)) {
    return Kernel::kLibrary;
  }
  if (!has_whole_chunks(weight.gate_up) || !has_whole_chunks(weight.down)) return Kernel::kReference;
  return rows <= kGemvRows ? Kernel::kGemv : Kernel::kTile;
}

int part_rows_of(Kernel kernel, int rows, int pairs, int num_experts) {
  if (kernel == Kernel::kLibrary) return pairs;  // an expert's are not divided
  if (kernel == Kernel::kReference) return kReferenceRows;
  if (kernel == Kernel::kGemv) return rows <= kGemvRows / 2 ? kGemvRows / 2 : kGemvRows;
  return pairs / num_experts <= kTileRows / 2 ? kTileRows / 2 : kTileRows;
}

// Of both products.
DType result_type(Kernel kernel) {
  return kernel == Kernel::kLibrary ? DType::kBFloat16 : DType::kFloat32;
}

// Whether the second product's inputs are rounded in a launch that can make them.
bool makes_activation(Kernel kernel, const ExpertWeight& expert) {
  const LinearWeight& down = expert.down;
  if (!expert.is_gated()) return false;
  return kernel == Kernel::kLibrary || (kernel == Kernel::kTile && down.input_order == nullptr);
}

void multiply(cudaStream_t stream, const LinearScratch& scratch, const ExpertTable& experts, Kernel kernel,
              int part_rows, int pairs, const SortedPairs& sorted, ExpertGemm product) {
  LinearWeight weight = product.first;
  Scratch memory = scratch.memory;
  if (kernel == Kernel::kLibrary) {
    return grouped_gemm(stream, memory, *experts.library,
                        {weight, product.on_device, sizeof(ExpertWeight), experts.count, sorted.parts,
                         sorted.part_count, sorted.experts, pairs, product.x, product.x_rows,
                         product.sources != nullptr ? product.sources->slots : nullptr, product.y});
  }
  const int padded = padded_inputs(weight);
  LinearTask task;
  task.weight = weight;
  task.y = static_cast<float*>(product.y);
  task.y_stride = weight.out_features;
  task.rows = pairs;
  task.expert_weights = product.on_device;
  task.expert_stride = sizeof(ExpertWeight);
  task.expert_rows = sorted.parts;
  task.part_count = sorted.part_count;
  task.sources = product.sources != nullptr ? product.sources->rows : nullptr;
  task.counters = scratch.counters;

  if (weight.input_order != nullptr) {
    auto* ordered = memory.take<float>(static_cast<size_t>(pairs) * padded);
    launch(order_inputs_kernel, rows_and(pairs, divide_up(padded, kThreads)), dim3(kThreads), 0, stream,
           product.x.x.floats(), task.sources, sorted.experts, product.on_device, weight.in_features, padded, ordered);
    product.x = ordered;
    product.x_rows = pairs;
    task.sources = nullptr;
    weight.input_order = nullptr;
    weight.in_features = padded;
  }
  task.x = product.x.x.data;
  task.x_stride = weight.in_features;
  if (kernel == Kernel::kReference) return reference_linear(stream, task, sorted.part_limit);
  const auto elements = static_cast<size_t>(product.x_rows) * padded;
  if (kernel == Kernel::kGemv) {
    if (task.x_stride % 4 != 0) {
      auto* gathered = memory.take<float>(elements);
      gather_input(stream, product.x, product.x_rows, weight, padded, gathered);
      task.x = gathered;
      task.x_stride = padded;
    }
    return gemv(stream, memory, task, part_rows, sorted.part_limit);
  }
  auto* rounded = memory.take<uint16_t>(elements);
  const ChunkOrder order = weight.format == WeightFormat::kInt4 ? ChunkOrder::kInt4 : ChunkOrder::kSequential;
  round_input(stream, product.x, product.x_rows, weight, order, padded, rounded);
  task.x = rounded;
  task.x_stride = padded;
  tile_linear(stream, memory, task, part_rows, sorted.part_limit);
}

template <class Element, int kCount>
void add_shares(cudaStream_t stream, const void* outputs, const SortedPairs& sorted, const int32_t* chosen,
                const float* weights, int rows, int top_k, int hidden, float* y) {
  launch(add_shares_kernel<Element, kCount>, rows_and(rows, divide_up(hidden, kCount * kThreads)), dim3(kThreads), 0,
         stream, static_cast<const Element*>(outputs), sorted.slots, chosen, weights, top_k, hidden, y);
}

// From how many pairs on a library multiplies.
int min_library_pairs(const ExpertTable& experts, GroupedType type) {
  return (type == GroupedType::kFloat8 ? kMinFloat8GroupRows : kMinGroupRows) * experts.count;
}

size_t library_bytes(const ExpertTable& experts, int rows, int top_k) {
  const auto& [gate_up, down] = experts.first;
  const auto pairs = static_cast<size_t>(rows) * top_k;
  size_t of_products = 0;
  for (const LinearWeight* weight : {&gate_up, &down}) {
    of_products = std::max(of_products, grouped_scratch_bytes(*weight, experts.count, rows * top_k));
  }
  return sorted_pairs_bytes(rows, top_k, experts.count) + scratch_bytes<bf16>(pairs * gate_up.out_features) +
         scratch_bytes<bf16>(pairs * down.out_features) + of_products;
}

size_t native_bytes(const ExpertTable& experts, int rows, int top_k) {
  const auto& [gate_up, down] = experts.first;
  const auto pairs = static_cast<size_t>(rows) * top_k;
  const auto inputs = static_cast<size_t>(std::max(padded_inputs(gate_up), padded_inputs(down)));
  return sorted_pairs_bytes(rows, top_k, experts.count) + scratch_bytes<float>(pairs * gate_up.out_features) +
         scratch_bytes<float>(pairs * down.in_features) + scratch_bytes<float>(pairs * down.out_features) +
         scratch_bytes<float>(pairs * inputs) + scratch_bytes<uint16_t>(pairs * inputs) + split_scratch_bytes();
}

}  // namespace

GroupedType library_type(const ExpertTable& experts, int rows, int top_k) {
  if (!experts.first.is_gated()) return GroupedType::kNone;
  const GroupedType type = grouped_type(experts.first.gate_up);
  if (type == GroupedType::kNone || grouped_type(experts.first.down) != type) return GroupedType::kNone;
  return rows * top_k >= min_library_pairs(experts, type) ? type : GroupedType::kNone;
}

size_t expert_scratch_bytes(const ExpertTable& experts, int rows, int top_k) {
  if (experts.library == nullptr) return native_bytes(experts, rows, top_k);
  const int native_rows = divide_up(min_library_pairs(experts, experts.library->type), top_k);
  return std::max(library_bytes(experts, rows, top_k), native_bytes(experts, std::min(rows, native_rows), top_k));
}

void add_experts(cudaStream_t stream, const LinearScratch& scratch, Activation activation, const ExpertTable& experts,
                 const float* x, int rows, int top_k, const int32_t* chosen, const float* weights, float* y) {
  if (rows == 0) return;
  if (top_k > kMaxExpertsOfRow) {
    throw internal_error("a row can go to at most " + std::to_string(kMaxExpertsOfRow) + " experts on a GPU, got " +
                         std::to_string(top_k));
  }
  const auto& [gate_up, down] = experts.first;
  const int pairs = rows * top_k;
  const int hidden = down.out_features;
  const Kernel kernel = kernel_for(experts, rows, top_k);
  const int part_rows = part_rows_of(kernel, rows, pairs, experts.count);
  LinearScratch inner = scratch;
  const SortedPairs sorted = take_pairs(inner.memory, rows, top_k, experts.count, part_rows);
  const DType type = result_type(kernel);
  const auto room_for = [&](int size) -> void* {
    return inner.memory.take<std::byte>(static_cast<size_t>(pairs) * size * byte_size(type));
  };
  void* halves = room_for(gate_up.out_features);
  void* outputs = room_for(hidden);
  LinearInput activated(ConstTypedRows(halves, type));
  activated.gate = activation;
  const auto* table = reinterpret_cast<const std::byte*>(experts.on_device);

  sort_by_expert(stream, chosen, rows, top_k, experts.count, part_rows, sorted);
  auto* made = makes_activation(kernel, experts.first)
                   ? nullptr
                   : inner.memory.take<float>(static_cast<size_t>(pairs) * down.in_features);
  multiply(stream, inner, experts, kernel, part_rows, pairs, sorted,
           {gate_up, table + offsetof(ExpertWeight, gate_up), x, rows, &sorted, halves});
  if (made != nullptr) {
    const int size = down.in_features;
    const auto* made_of = static_cast<const float*>(halves);
    const HeadsView gate = rows_view(made_of, pairs, size, gate_up.out_features);
    const HeadsView up =
        experts.first.is_gated() ? rows_view(made_of + size, pairs, size, gate.row_stride) : HeadsView{};
    activate(stream, activation, gate, up, rows_view(made, pairs, size));
    activated = made;
  }
  multiply(stream, inner, experts, kernel, part_rows, pairs, sorted,
           {down, table + offsetof(ExpertWeight, down), activated, pairs, nullptr, outputs});
  auto* add = type == DType::kBFloat16          ? add_shares<bf16, 8>
              : hidden % 4 == 0 && is_float4(y) ? add_shares<float, 4>
                                                : add_shares<float, 1>;
  add(stream, outputs, sorted, chosen, weights, rows, top_k, hidden, y);
}

}  // namespace turbomind::cuda
