#include "kernels/linear.h"

#include <algorithm>
#include <vector>

#include "kernels/cpu/isa.h"
#include "kernels/packed_weight.h"

namespace turbomind {

namespace {

// Weight bytes one chunk streams: large enough to hide the cost of a claim, small enough to balance two cores.
constexpr size_t kChunkBytes = 128 << 10;
constexpr int kQuantizeRows = 8;

// Calls body(first row, rows, first unit, last unit) for blocks of rows and of units of the weight. Units vary fastest,
// so that all threads work on the same rows of x.
template <class Body>
void for_blocks(ThreadPool& pool, int rows, int units, size_t unit_bytes, int unit_multiple, Body&& body) {
  const int wanted = static_cast<int>(kChunkBytes / std::max<size_t>(unit_bytes, 1)) / unit_multiple * unit_multiple;
  const int chunk_units = std::max(unit_multiple, wanted);
  const int unit_chunks = (units + chunk_units - 1) / chunk_units;
  const int row_chunks = (rows + kLinearRowBlock - 1) / kLinearRowBlock;
  pool.parallel_for(row_chunks * unit_chunks, [&](int chunk) {
    const int row = chunk / unit_chunks * kLinearRowBlock;
    const int first = chunk % unit_chunks * chunk_units;
    body(row, std::min(kLinearRowBlock, rows - row), first, std::min(first + chunk_units, units));
  });
}

// The inputs of a row in the order of the weight's codes; `room` may be filled with them.
const float* in_code_order(const LinearWeight& weight, const float* row, std::vector<float>& room) {
  if (weight.input_order == nullptr) return row;
  room.resize(static_cast<size_t>(weight.in_features));
  for (size_t i = 0; i < room.size(); ++i) room[i] = row[weight.input_order[i]];
  return room.data();
}

void packed_linear(ThreadPool& pool, LinearScratch& scratch, const LinearWeight& weight, const float* x, int rows,
                   float* y, bool accumulate) {
  const KernelTable& table = kernels();
  const PackedShape shape = packed_shape(weight);
  const LinearScratch::View view = scratch.reserve(rows, shape.padded_features(), shape.groups());
  pool.parallel_for((rows + kQuantizeRows - 1) / kQuantizeRows, [&](int chunk) {
    const int last = std::min(rows, (chunk + 1) * kQuantizeRows);
    std::vector<float> room;
    for (auto row = static_cast<size_t>(chunk) * kQuantizeRows; row < static_cast<size_t>(last); ++row) {
      table.quantize_row(in_code_order(weight, x + row * weight.in_features, room), weight.in_features, weight.group,
                         shape.groups(), view.codes + row * shape.padded_features(), view.scales + row * shape.groups(),
                         view.sums + row * shape.groups());
    }
  });
  const size_t tile_bytes = shape.group_bytes() * shape.groups();
  for_blocks(pool, rows, shape.tiles(), tile_bytes, 1, [&](int row, int count, int first, int last) {
    table.packed_block(weight, view, row, count, first, last, y, accumulate);
  });
}

}  // namespace

LinearScratch::View LinearScratch::reserve(int rows, int padded_features, int groups) {
  const size_t codes = static_cast<size_t>(rows) * padded_features;
  const size_t entries = static_cast<size_t>(rows) * groups;
  if (codes_.size() < codes) codes_.resize(codes);
  if (scales_.size() < entries) {
    scales_.resize(entries);
    sums_.resize(entries);
  }
  return {codes_.data(), scales_.data(), sums_.data()};
}

void linear(ThreadPool& pool, LinearScratch& scratch, const LinearWeight& weight, const float* x, int rows, float* y,
            bool accumulate) {
  if (weight.is_packed()) {
    packed_linear(pool, scratch, weight, x, rows, y, accumulate);
    return;
  }
  const KernelTable& table = kernels();
  const size_t row_bytes = static_cast<size_t>(weight.in_features) * (weight.format == WeightFormat::kFloat32 ? 4 : 2);
  for_blocks(pool, rows, weight.out_features, row_bytes, 4, [&](int row, int count, int first, int last) {
    table.linear_block(weight, x + static_cast<size_t>(row) * weight.in_features, count, first, last,
                       y + static_cast<size_t>(row) * weight.out_features, accumulate);
  });
}

}  // namespace turbomind
