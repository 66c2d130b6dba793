#include "kernels/linear.h"

#include <algorithm>
#include <vector>

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

// A row of an input that is made, put into `row`.
void materialize_row(const LinearInput& input, size_t index, int size, float* row) {
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
    if (input_.has_prologue()) {
      materialized_.resize(size);
      materialize_row(input_, index, weight_.in_features, materialized_.data());
      row = materialized_.data();
    }
    if (weight_.input_order == nullptr) return row;
    ordered_.resize(size);
    for (size_t i = 0; i < size; ++i) ordered_[i] = row[weight_.input_order[i]];
    return ordered_.data();
  }

 private:
  const LinearWeight& weight_;
  const LinearInput& input_;
  std::vector<float> materialized_;
  std::vector<float> ordered_;
};

// The first whole cache line of a buffer: what crosses two is read at half the speed.
void* align_up(void* buffer) {
  return reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(buffer) + kCacheLine - 1) / kCacheLine * kCacheLine);
}

size_t row_bytes(const LinearWeight& weight) {
  return static_cast<size_t>(weight.in_features) * (weight.format == WeightFormat::kFloat32 ? 4 : 2);
}

// Rows that one thread prepares at a time: a part for each thread, and once more, so that a late one takes less.
int prepared_rows(const ThreadPool& pool, int rows) {
  if (rows <= kLineRows) return kLineRows / 2;
  const int part = rows / (2 * pool.thread_count());
  return std::max(part + kLineRows - 1, kLineRows) / kLineRows * kLineRows;
}

// A product in two passes, each in chunks that threads claim: rows are made ready, then blocks of them are multiplied
// with blocks of units of the weight, which are tiles of outputs, or outputs where rows stay as they are.
class LinearGemm {
 public:
  LinearGemm(const ThreadPool& pool, LinearScratch& scratch, const LinearJob& job, bool accumulate)
      : job_(job),
        accumulate_(accumulate),
        plan_(kernels().rows_plan(job.weight, job.rows)),
        x_(job.input.has_prologue() ? job.input.workspace : job.input.x.floats()),
        prepared_rows_(prepared_rows(pool, job.rows)) {
    const LinearWeight& weight = job.weight;
    units_ = (weight.out_features + kTileOutputs - 1) / kTileOutputs;
    unit_multiple_ = plan_.block_tiles;
    size_t unit_bytes = row_bytes(weight) * kTileOutputs;
    if (plan_.kind == RowsPlan::Kind::kAsTheyAre) {
      units_ = weight.out_features;
      unit_multiple_ = 4;
      unit_bytes = row_bytes(weight);
    } else if (plan_.kind == RowsPlan::Kind::kQuantized) {
      const PackedShape shape = packed_shape(weight);
      rounded_ = scratch.reserve_quantized(weight, plan_.layout, job.rows);
      unit_bytes = shape.group_bytes() * shape.groups();
    } else {
      converted_ = scratch.reserve_converted(plan_.layout, job.rows);
      if (weight.is_packed()) unit_bytes = plan_.layout.features * kTileOutputs;
    }
    divide(static_cast<size_t>(pool.thread_count()), unit_bytes);
  }

  int prepare_chunks() const {
    if (plan_.kind == RowsPlan::Kind::kAsTheyAre && !job_.input.has_prologue()) return 0;
    return (job_.rows + prepared_rows_ - 1) / prepared_rows_;
  }

  void prepare(int chunk) const {
    const LinearWeight& weight = job_.weight;
    const auto size = static_cast<size_t>(weight.in_features);
    const int last = std::min(job_.rows, (chunk + 1) * prepared_rows_);
    RowReader reader(weight, job_.input);
    for (int row = chunk * prepared_rows_; row < last; ++row) {
      const auto index = static_cast<size_t>(row);
      switch (plan_.kind) {
        case RowsPlan::Kind::kAsTheyAre:
          materialize_row(job_.input, index, weight.in_features, job_.input.workspace + index * size);
          break;
        case RowsPlan::Kind::kQuantized:
          kernels().quantize_row(reader.read(index), weight.in_features, weight.group, row, rounded_);
          break;
        case RowsPlan::Kind::kWide:
          kernels().convert_row(reader.read(index), weight.in_features, row, converted_);
      }
    }
  }

  int multiply_chunks() const { return row_chunks_ * unit_chunks_; }

  // Units vary fastest, so that all threads work on the same rows of x.
  void multiply(int chunk) const {
    const LinearWeight& weight = job_.weight;
    const int row = chunk / unit_chunks_ * plan_.block_rows;
    const int rows = std::min(plan_.block_rows, job_.rows - row);
    const int first = first_unit(chunk % unit_chunks_);
    const int last = first_unit(chunk % unit_chunks_ + 1);
    switch (plan_.kind) {
      case RowsPlan::Kind::kAsTheyAre:
        kernels().linear_block(weight, x_ + static_cast<size_t>(row) * weight.in_features, rows, first, last,
                               job_.y + static_cast<size_t>(row) * weight.out_features, accumulate_);
        break;
      case RowsPlan::Kind::kQuantized:
        kernels().packed_block(weight, rounded_, row, rows, first, last, job_.y, accumulate_);
        break;
      case RowsPlan::Kind::kWide:
        kernels().converted_block(weight, converted_, row, rows, first, last, job_.y, accumulate_);
    }
  }

 private:
  // Chunks are a multiple of the threads, and their sizes differ by one multiple of units at most, so that threads end
  // together.
  void divide(size_t threads, size_t unit_bytes) {
    row_chunks_ = (job_.rows + plan_.block_rows - 1) / plan_.block_rows;
    multiples_ = (static_cast<size_t>(units_) + unit_multiple_ - 1) / unit_multiple_;
    const size_t bytes = unit_bytes * units_;
    size_t requested = std::max(bytes / kChunkBytes, std::min(2 * threads / row_chunks_, bytes / kMinChunkBytes));
    if (requested > 1) requested = (requested + threads - 1) / threads * threads;
    unit_chunks_ = static_cast<int>(std::clamp<size_t>(requested, 1, std::max<size_t>(multiples_, 1)));
  }

  int first_unit(int part) const {
    return std::min(units_, static_cast<int>(multiples_ * part / unit_chunks_) * unit_multiple_);
  }

  const LinearJob& job_;
  bool accumulate_;
  RowsPlan plan_;
  const float* x_;  // where rows stay as they are
  int prepared_rows_;
  int units_;
  int unit_multiple_;  // that a chunk takes
  size_t multiples_ = 0;
  int row_chunks_ = 0;
  int unit_chunks_ = 0;
  QuantizedRows rounded_{};
  ConvertedRows converted_{};
};

// Runs a pass of all products in one loop.
void for_chunks(ThreadPool& pool, const std::vector<LinearGemm>& products, int (LinearGemm::*count)() const,
                void (LinearGemm::*pass)(int) const) {
  std::vector<int> begins;
  int total = 0;
  for (const LinearGemm& product : products) {
    begins.push_back(total);
    total += (product.*count)();
  }
  pool.parallel_for(total, [&](int chunk) {
    const auto job_index = std::ranges::upper_bound(begins, chunk) - begins.begin() - 1;
    (products[static_cast<size_t>(job_index)].*pass)(chunk - begins[static_cast<size_t>(job_index)]);
  });
}

}  // namespace

QuantizedRows LinearScratch::reserve_quantized(const LinearWeight& weight, const RowsLayout& layout, int rows) {
  const PackedShape shape = packed_shape(weight);
  QuantizedRows view{};
  view.rows = rows;
  view.layout = layout;
  view.groups = shape.groups();
  view.zero_factor = weight.zeros == nullptr && weight.mins == nullptr ? -shape.zero_point() : -1;
  const size_t quantized = layout.elements(rows) + kCacheLine;
  const size_t entries = layout.blocks(rows) * layout.interleave * view.groups;  // those of missing rows are read
  if (quantized_.size() < quantized) quantized_.resize(quantized);
  if (offsets_.size() < entries) {
    scales_.resize(entries);
    offsets_.resize(entries);
  }
  view.quantized = reinterpret_cast<int8_t*>(align_up(quantized_.data()));
  view.scales = scales_.data();
  view.offsets = offsets_.data();
  return view;
}

ConvertedRows LinearScratch::reserve_converted(const RowsLayout& layout, int rows) {
  const size_t values = layout.elements(rows) + kCacheLine / sizeof(float);
  if (values_.size() < values) values_.resize(values);
  return {rows, layout, align_up(values_.data())};
}

void linear(ThreadPool& pool, LinearScratch& scratch, const LinearWeight& weight, const LinearInput& input, int rows,
            float* y, bool accumulate) {
  const LinearJob job{weight, input, rows, y};
  const LinearGemm product(pool, scratch, job, accumulate);
  pool.parallel_for(product.prepare_chunks(), [&](int chunk) { product.prepare(chunk); });
  pool.parallel_for(product.multiply_chunks(), [&](int chunk) { product.multiply(chunk); });
}

void multiply(const KernelTable& table, const LinearWeight& weight, const float* x, int rows, float* y) {
  const RowsPlan plan = table.rows_plan(weight, rows);
  const int inputs = weight.in_features;
  const int tiles = (weight.out_features + kTileOutputs - 1) / kTileOutputs;
  const auto row_of = [&](int row) { return x + static_cast<size_t>(row) * inputs; };
  LinearScratch scratch;
  if (plan.kind == RowsPlan::Kind::kAsTheyAre) {
    table.linear_block(weight, x, rows, 0, weight.out_features, y, false);
  } else if (plan.kind == RowsPlan::Kind::kQuantized) {
    const QuantizedRows rounded = scratch.reserve_quantized(weight, plan.layout, rows);
    for (int row = 0; row < rows; ++row) table.quantize_row(row_of(row), inputs, weight.group, row, rounded);
    table.packed_block(weight, rounded, 0, rows, 0, tiles, y, false);
  } else {
    const ConvertedRows converted = scratch.reserve_converted(plan.layout, rows);
    for (int row = 0; row < rows; ++row) table.convert_row(row_of(row), inputs, row, converted);
    table.converted_block(weight, converted, 0, rows, 0, tiles, y, false);
  }
}

void grouped_gemm(ThreadPool& pool, std::vector<LinearScratch>& scratch, std::span<const LinearJob> jobs) {
  if (scratch.size() < jobs.size()) scratch.resize(jobs.size());
  std::vector<LinearGemm> products;
  products.reserve(jobs.size());
  for (size_t i = 0; i < jobs.size(); ++i) products.emplace_back(pool, scratch[i], jobs[i], false);
  for_chunks(pool, products, &LinearGemm::prepare_chunks, &LinearGemm::prepare);
  for_chunks(pool, products, &LinearGemm::multiply_chunks, &LinearGemm::multiply);
}

}  // namespace turbomind
