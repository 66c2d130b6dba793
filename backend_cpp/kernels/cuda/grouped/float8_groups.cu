#include "kernels/cuda/grouped/groups.cuh"

#include <algorithm>

#include "kernels/cuda/linear/unpack_quantized.cuh"
#include "kernels/cuda/linear/weight_slab.cuh"
#include "kernels/cuda/quantize/float8_blocks.cuh"

namespace turbomind::cuda {

namespace {

static_assert(kGroupBlock == kFloat8Block);

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;
// Weights are laid out for a launch that gives each multiprocessor some tiles; what it reads then mostly is in the
// second-level cache.
constexpr int kTileRows = 128;  // of libraries' kernels, and as many outputs
constexpr int kTilesEach = 4;
constexpr size_t kMaxPieceBytes = size_t{128} << 20;

int blocks_of(const LinearWeight& weight) {
  return divide_up(padded_inputs(weight), kFloat8Block);
}

// With zeros up to whole blocks.
size_t inputs_of(const LinearWeight& weight) {
  return static_cast<size_t>(blocks_of(weight)) * kFloat8Block;
}

// Experts whose weights there is room for.
int max_piece_experts(const LinearWeight& weight, int experts) {
  const size_t bytes = weight.out_features * inputs_of(weight);
  return std::min(experts, std::max(1, static_cast<int>(kMaxPieceBytes / bytes)));
}

// Experts whose weights are laid out at once.
int piece_experts(const LinearWeight& weight, int experts, int pairs) {
  const int tiles = divide_up(divide_up(pairs, experts), kTileRows) * divide_up(weight.out_features, kTileRows);
  return std::min(max_piece_experts(weight, experts), divide_up(kTilesEach * multiprocessor_count(), tiles));
}

__device__ __forceinline__ const LinearWeight& weight_of(const GroupedGemm& product, int expert) {
  return *reinterpret_cast<const LinearWeight*>(product.weights + expert * product.weight_stride);
}

// Operands as they are rounded and laid out.
struct Operands {
  int inputs;  // whole blocks
  int blocks;
  int piece;        // experts
  int2* rows_of;    // [experts]: first pair and number of pairs of each expert that has any
  uint8_t* x;       // [pairs, inputs]
  float* x_scales;  // of each expert [blocks, its pairs], one after the other
  uint8_t* w;       // [piece, outputs, inputs]
  float* w_scales;  // [piece, blocks, outputs]
};

// A thread fills in a group: an expert that has rows, or, after these, none.
__global__ void __launch_bounds__(kThreads)
    fill_float8_groups_kernel(GroupedGemm product, Operands operands, GroupedTable table) {
  await_previous();
  const int group = blockIdx.x * kThreads + threadIdx.x;
  if (group >= product.experts) return;
  const bool is_there = group < *product.part_count;
  const int first = is_there ? product.parts[group].first : 0;
  const int rows = is_there ? product.parts[group].count : 0;
  if (is_there) operands.rows_of[product.parts[group].expert] = make_int2(first, rows);
  const size_t outputs = product.first.out_features;
  const size_t part = group % operands.piece;
  set_shape(table, group, rows, product.first.out_features, operands.inputs);
  table.x[group] = operands.x + static_cast<size_t>(first) * operands.inputs;
  table.w[group] = operands.w + part * outputs * operands.inputs;
  table.y[group] = static_cast<bf16*>(product.y) + first * outputs;
  table.x_scales[group] = operands.x_scales + static_cast<size_t>(first) * operands.blocks;
  table.w_scales[group] = operands.w_scales + part * outputs * operands.blocks;
}

// A warp rounds 128 inputs of a row, for all its pairs; block x is the row, y kWarps times 128 inputs.
template <class Rows>
__global__ void __launch_bounds__(kThreads) spread_blocks_kernel(Rows rows, PairRows row_of_pair, Operands operands) {
  await_previous();
  const int row = blockIdx.x;
  const int block = blockIdx.y * kWarps + threadIdx.x / kWarp;
  if (block >= operands.blocks || row_of_pair(row, 0) < 0) return;
  float values[kBlockWords];
  rows.begin(row);
  rows.read(block * kFloat8Block + static_cast<int>(threadIdx.x) % kWarp * kBlockWords, values);
  const QuantizedBlock rounded = round_block(values);
  for (int k = 0; k < row_of_pair.of_each; ++k) {
    const int pair = row_of_pair(row, k);
    const int2 group = operands.rows_of[row_of_pair.expert_of_pair[pair]];
    rounded.write(operands.x + static_cast<size_t>(pair) * operands.inputs + static_cast<size_t>(block) * kFloat8Block,
                  operands.x_scales + static_cast<size_t>(group.x) * operands.blocks +
                      static_cast<size_t>(block) * group.y + (pair - group.x));
  }
}

// blockIdx.z: which group of the piece that begins with first_group.
__global__ void __launch_bounds__(kUnpackThreads)
    unpack_experts_kernel(GroupedGemm product, Operands operands, int first_group) {
  await_previous();
  const int group = first_group + blockIdx.z;
  if (group >= *product.part_count) return;
  const int outputs = product.first.out_features;
  unpack_words(weight_of(product, product.parts[group].expert), 0, outputs, operands.inputs,
               reinterpret_cast<uint32_t*>(operands.w + static_cast<size_t>(blockIdx.z) * outputs * operands.inputs));
}

// The same; blockIdx.y is the block of inputs.
__global__ void __launch_bounds__(kThreads)
    gather_expert_scales_kernel(GroupedGemm product, Operands operands, int first_group) {
  await_previous();
  const int group = first_group + blockIdx.z;
  const int output = blockIdx.x * kThreads + threadIdx.x;
  const int outputs = product.first.out_features;
  if (output >= outputs || group >= *product.part_count) return;
  const size_t row = static_cast<size_t>(blockIdx.z) * operands.blocks + blockIdx.y;
  operands.w_scales[row * outputs + output] =
      float8_scale(weight_of(product, product.parts[group].expert), output, blockIdx.y, operands.blocks);
}

}  // namespace

size_t float8_groups_bytes(const LinearWeight& weight, int experts, int pairs) {
  const size_t inputs = inputs_of(weight);
  const auto blocks = static_cast<size_t>(blocks_of(weight));
  const auto laid_out = static_cast<size_t>(max_piece_experts(weight, experts)) * weight.out_features;
  return table_bytes(static_cast<size_t>(experts)) + scratch_bytes<int2>(experts) +
         scratch_bytes<uint8_t>(pairs * inputs) + scratch_bytes<float>(pairs * blocks) +
         scratch_bytes<uint8_t>(laid_out * inputs) + scratch_bytes<float>(laid_out * blocks) +
         scratch_bytes<std::byte>(kGroupedWorkspaceBytes);
}

void float8_groups(cudaStream_t stream, Scratch memory, const GroupedKernel& kernel, const GroupedGemm& product) {
  const LinearWeight& weight = product.first;
  const int outputs = weight.out_features;
  Operands operands{};
  operands.inputs = static_cast<int>(inputs_of(weight));
  operands.blocks = blocks_of(weight);
  operands.piece = piece_experts(weight, product.experts, product.pairs);
  const auto pairs = static_cast<size_t>(product.pairs);
  const auto laid_out = static_cast<size_t>(operands.piece) * outputs;
  const GroupedTable table = take_table(memory, static_cast<size_t>(product.experts));
  operands.rows_of = memory.take<int2>(static_cast<size_t>(product.experts));
  operands.x = memory.take<uint8_t>(pairs * operands.inputs);
  operands.x_scales = memory.take<float>(pairs * operands.blocks);
  operands.w = memory.take<uint8_t>(laid_out * operands.inputs);
  operands.w_scales = memory.take<float>(laid_out * operands.blocks);
  GroupedCall call;
  call.rows = product.pairs;
  call.outputs = outputs;
  call.inputs = operands.inputs;
  call.workspace = memory.take<std::byte>(kGroupedWorkspaceBytes);
  launch(fill_float8_groups_kernel, dim3(divide_up(product.experts, kThreads)), dim3(kThreads), 0, stream, product,
         operands, table);
  const RowsToRound from = rows_of(product.first, product.x, product.x_rows);
  with_inputs(product.x, from, [&]<class Rows>(const Rows& rows) {
    launch(spread_blocks_kernel<Rows>, rows_and(product.x_rows, divide_up(operands.blocks, kWarps)), dim3(kThreads), 0,
           stream, rows, PairRows(product), operands);
  });
  for (int first = 0; first < product.experts; first += operands.piece) {
    call.groups = std::min(operands.piece, product.experts - first);
    call.table = from_group(table, first);
    launch(unpack_experts_kernel, unpack_grid(outputs, operands.inputs, call.groups), dim3(kUnpackThreads), 0, stream,
           product, operands, first);
    launch(gather_expert_scales_kernel, dim3(divide_up(outputs, kThreads), operands.blocks, call.groups),
           dim3(kThreads), 0, stream, product, operands, first);
    kernel.run(stream, call);
  }
}

}  // namespace turbomind::cuda
