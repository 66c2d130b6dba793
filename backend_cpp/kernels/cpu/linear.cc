#include "kernels/linear.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "kernels/cpu/isa.h"
#include "kernels/packed_weight.h"

namespace turbomind {

namespace {

// Weight bytes one chunk streams: large enough to hide the cost of a claim, small enough to balance two cores.
constexpr size_t kChunkBytes = 128 << 10;
// Rows that are rounded together lie together; scales of so many fill a cache line, which threads should not share.
constexpr int kTogetherRows = 8;
constexpr int kLineRows = 16;

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

// Rows that one thread prepares at a time: a part for each thread, and once more, so that a late one takes less.
int prepared_rows(const ThreadPool& pool, int rows) {
  if (rows <= kLineRows) return kTogetherRows;
  return (rows / (2 * pool.thread_count()) + kLineRows - 1) / kLineRows * kLineRows;
}

void packed_linear(ThreadPool& pool, LinearScratch& scratch, const LinearWeight& weight, const float* x, int rows,
                   float* y, bool accumulate) {
  const KernelTable& table = kernels();
  const PackedShape shape = packed_shape(weight);
  const size_t tile_bytes = shape.group_bytes() * shape.groups();
  // Calls prepare(inputs in the order of the codes, row) for each row.
  const auto for_inputs = [&](auto&& prepare) {
    const int chunk_rows = prepared_rows(pool, rows);
    pool.parallel_for((rows + chunk_rows - 1) / chunk_rows, [&](int chunk) {
      const int last = std::min(rows, (chunk + 1) * chunk_rows);
      std::vector<float> room;
      for (int row = chunk * chunk_rows; row < last; ++row) {
        prepare(in_code_order(weight, x + static_cast<size_t>(row) * weight.in_features, room), row);
      }
    });
  };
  if (shape.is_float8) {
    const WideRows wide = scratch.reserve_wide(weight, rows);
    for_inputs([&](const float* inputs, int row) { table.widen_row(inputs, weight.in_features, row, wide); });
    for_blocks(pool, rows, shape.tiles(), tile_bytes, 1, [&](int row, int count, int first, int last) {
      table.float8_block(weight, wide, row, count, first, last, y, accumulate);
    });
    return;
  }
  const RoundedRows rounded = scratch.reserve_rounded(weight, rows);
  for_inputs([&](const float* inputs, int row) {
    table.quantize_row(inputs, weight.in_features, weight.group, row, rounded);
  });
  for_blocks(pool, rows, shape.tiles(), tile_bytes, 1, [&](int row, int count, int first, int last) {
    table.packed_block(weight, rounded, row, count, first, last, y, accumulate);
  });
}

// Rows that lie together; the last of them may be missing.
int interleave_of(int rows) {
  return static_cast<int>(std::bit_ceil(static_cast<unsigned>(std::min(rows, kTogetherRows))));
}

}  // namespace

RoundedRows LinearScratch::reserve_rounded(const LinearWeight& weight, int rows) {
  const PackedShape shape = packed_shape(weight);
  RoundedRows view{};
  view.rows = rows;
  view.interleave = interleave_of(rows);
  view.groups = shape.groups();
  view.zero_factor = weight.zeros == nullptr && weight.mins == nullptr ? -shape.zero_code() : -1;
  view.features = static_cast<size_t>(shape.padded_features());
  const size_t blocks = (static_cast<size_t>(rows) + view.interleave - 1) / view.interleave;
  const size_t codes = blocks * view.interleave * view.features;
  const size_t entries = static_cast<size_t>(rows) * view.groups + view.interleave;  // those of missing rows are read
  if (codes_.size() < codes) codes_.resize(codes);
  if (offsets_.size() < entries) {
    scales_.resize(entries);
    offsets_.resize(entries);
  }
  view.codes = codes_.data();
  view.scales = scales_.data();
  view.offsets = offsets_.data();
  return view;
}

WideRows LinearScratch::reserve_wide(const LinearWeight& weight, int rows) {
  const int interleave = interleave_of(rows);
  const auto features = static_cast<size_t>(packed_shape(weight).padded_features());
  const size_t blocks = (static_cast<size_t>(rows) + interleave - 1) / interleave;
  const size_t values = blocks * interleave * features;
  if (values_.size() < values) values_.resize(values);
  return {rows, interleave, features, values_.data()};
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
