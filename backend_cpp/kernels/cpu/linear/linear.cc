#include "kernels/linear.h"

#include <algorithm>
#include <vector>

#include "kernels/cpu/for_rows.h"
#include "kernels/cpu/isa.h"
#include "kernels/packed_weight.h"

namespace turbomind {

namespace {

// Scales of this many rows fill a cache line, which threads should not share.
constexpr int kLineRows = 16;
constexpr size_t kCacheLine = 64;

// Weight bytes one chunk streams: large enough to hide the cost of a claim, small enough to balance two cores; and the
// fewest that are worth a claim.
constexpr size_t kChunkBytes = 128 << 10;
constexpr size_t kMinChunkBytes = 16 << 10;

// Calls body(first row, rows, first unit, last unit) for blocks of rows and of units of the weight. Units vary fastest,
// so that all threads work on the same rows of x. Chunks are a multiple of the threads, and their sizes differ by one
// multiple of units at most, so that threads end together.
template <class Body>
void for_blocks(ThreadPool& pool, const RowsPlan& plan, int rows, int units, size_t unit_bytes, int unit_multiple,
                Body&& body) {
  const int row_chunks = (rows + plan.block_rows - 1) / plan.block_rows;
  const auto threads = static_cast<size_t>(pool.thread_count());
  const size_t bytes = unit_bytes * units;
  const size_t multiples = (static_cast<size_t>(units) + unit_multiple - 1) / unit_multiple;
  size_t wanted = std::max(bytes / kChunkBytes, std::min(2 * threads / row_chunks, bytes / kMinChunkBytes));
  if (wanted > 1) wanted = (wanted + threads - 1) / threads * threads;
  const auto unit_chunks = static_cast<int>(std::clamp<size_t>(wanted, 1, multiples));
  const auto begin_of = [&](int part) {
    return std::min(units, static_cast<int>(multiples * part / unit_chunks) * unit_multiple);
  };
  pool.parallel_for(row_chunks * unit_chunks, [&](int chunk) {
    const int row = chunk / unit_chunks * plan.block_rows;
    const int part = chunk % unit_chunks;
    body(row, std::min(plan.block_rows, rows - row), begin_of(part), begin_of(part + 1));
  });
}

// A row of an input that is made, put into `row`.
void make_row(const LinearInput& input, size_t index, int size, float* row) {
  const KernelTable& table = kernels();
  if (input.norm != nullptr) {
    table.norm_row(*input.norm, input.x.floats() + index * size, size, row);
  } else {
    const float* gate = input.x.floats() + index * 2 * size;
    table.activate_row(*input.gate, gate, gate + size, size, row);
  }
}

// Reads an input's rows in the order of the weight's codes; holds the working space of a thread.
class RowReader {
 public:
  RowReader(const LinearWeight& weight, const LinearInput& input) : weight_(weight), input_(input) {}

  const float* read(size_t index) {
    const auto size = static_cast<size_t>(weight_.in_features);
    const float* row = input_.x.floats() + index * size;
    if (input_.is_made()) {
      made_.resize(size);
      make_row(input_, index, weight_.in_features, made_.data());
      row = made_.data();
    }
    if (weight_.input_order == nullptr) return row;
    ordered_.resize(size);
    for (size_t i = 0; i < size; ++i) ordered_[i] = row[weight_.input_order[i]];
    return ordered_.data();
  }

 private:
  const LinearWeight& weight_;
  const LinearInput& input_;
  std::vector<float> made_;
  std::vector<float> ordered_;
};

// Rows that one thread prepares at a time: a part for each thread, and once more, so that a late one takes less.
int prepared_rows(const ThreadPool& pool, int rows) {
  if (rows <= kLineRows) return kLineRows / 2;
  const int part = rows / (2 * pool.thread_count());
  return std::max(part + kLineRows - 1, kLineRows) / kLineRows * kLineRows;
}

// Calls prepare(inputs in the order of the codes, row) for each row.
template <class Prepare>
void for_inputs(ThreadPool& pool, const LinearWeight& weight, const LinearInput& input, int rows, Prepare&& prepare) {
  const int chunk_rows = prepared_rows(pool, rows);
  pool.parallel_for((rows + chunk_rows - 1) / chunk_rows, [&](int chunk) {
    const int last = std::min(rows, (chunk + 1) * chunk_rows);
    RowReader reader(weight, input);
    for (int row = chunk * chunk_rows; row < last; ++row) prepare(reader.read(static_cast<size_t>(row)), row);
  });
}

// The first whole cache line of a buffer: what crosses two is read at half the speed.
void* align_up(void* buffer) {
  return reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(buffer) + kCacheLine - 1) / kCacheLine * kCacheLine);
}

size_t row_bytes(const LinearWeight& weight) {
  return static_cast<size_t>(weight.in_features) * (weight.format == WeightFormat::kFloat32 ? 4 : 2);
}

}  // namespace

QuantizedRows LinearScratch::reserve_quantized(const LinearWeight& weight, const RowsLayout& layout, int rows) {
  const PackedShape shape = packed_shape(weight);
  QuantizedRows view{};
  view.rows = rows;
  view.layout = layout;
  view.groups = shape.groups();
  view.zero_factor = weight.zeros == nullptr && weight.mins == nullptr ? -shape.zero_code() : -1;
  const size_t codes = layout.elements(rows) + kCacheLine;
  const size_t entries = layout.blocks(rows) * layout.interleave * view.groups;  // those of missing rows are read
  if (codes_.size() < codes) codes_.resize(codes);
  if (offsets_.size() < entries) {
    scales_.resize(entries);
    offsets_.resize(entries);
  }
  view.codes = reinterpret_cast<int8_t*>(align_up(codes_.data()));
  view.scales = scales_.data();
  view.offsets = offsets_.data();
  return view;
}

WideRows LinearScratch::reserve_wide(const RowsLayout& layout, int rows) {
  const size_t values = layout.elements(rows) + kCacheLine / sizeof(float);
  if (values_.size() < values) values_.resize(values);
  return {rows, layout, align_up(values_.data())};
}

void linear(ThreadPool& pool, LinearScratch& scratch, const LinearWeight& weight, const LinearInput& input, int rows,
            float* y, bool accumulate) {
  const float* x = input.x.floats();
  const KernelTable& table = kernels();
  const RowsPlan plan = table.rows_plan(weight, rows);
  const int tiles = (weight.out_features + kTileOutputs - 1) / kTileOutputs;
  switch (plan.kind) {
    case RowsPlan::Kind::kAsTheyAre: {
      if (input.is_made()) {
        const int size = weight.in_features;
        for_rows(pool, rows, 4 * size, [&](size_t row) { make_row(input, row, size, input.workspace + row * size); });
        x = input.workspace;
      }
      for_blocks(pool, plan, rows, weight.out_features, row_bytes(weight), 4,
                 [&](int row, int count, int first, int last) {
                   table.linear_block(weight, x + static_cast<size_t>(row) * weight.in_features, count, first, last,
                                      y + static_cast<size_t>(row) * weight.out_features, accumulate);
                 });
      break;
    }
    case RowsPlan::Kind::kQuantized: {
      const QuantizedRows rounded = scratch.reserve_quantized(weight, plan.layout, rows);
      for_inputs(pool, weight, input, rows, [&](const float* inputs, int row) {
        table.quantize_row(inputs, weight.in_features, weight.group, row, rounded);
      });
      const PackedShape shape = packed_shape(weight);
      for_blocks(pool, plan, rows, tiles, shape.group_bytes() * shape.groups(), plan.block_tiles,
                 [&](int row, int count, int first, int last) {
                   table.packed_block(weight, rounded, row, count, first, last, y, accumulate);
                 });
      break;
    }
    case RowsPlan::Kind::kWide: {
      const WideRows wide = scratch.reserve_wide(plan.layout, rows);
      for_inputs(pool, weight, input, rows,
                 [&](const float* inputs, int row) { table.widen_row(inputs, weight.in_features, row, wide); });
      const size_t bytes = weight.is_packed() ? plan.layout.features : row_bytes(weight);
      for_blocks(pool, plan, rows, tiles, bytes * kTileOutputs, plan.block_tiles,
                 [&](int row, int count, int first, int last) {
                   table.wide_block(weight, wide, row, count, first, last, y, accumulate);
                 });
    }
  }
}

}  // namespace turbomind
