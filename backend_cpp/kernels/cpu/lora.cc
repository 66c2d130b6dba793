#include "kernels/lora.h"

#include <algorithm>
#include <vector>

#include "kernels/cpu/isa.h"

namespace turbomind {

namespace {

// Weight bytes that one thread takes at a time: a small adapter is not worth a hand-over.
constexpr size_t kTaskBytes = 48 << 10;

// Arguments of one call, for the threads.
struct LoraTask {
  const LoraWeight* weight;
  int row;
  int rows;
  int part;
  int first;
  int last;
};
thread_local std::vector<LoraTask> tasks;

size_t element_bytes(const LoraWeight& weight) {
  return weight.format == WeightFormat::kFloat32 ? 4 : 2;
}

// Calls visit(weight, first row, rows) for each run of neighbouring rows that have the same adapter.
template <class Visit>
void for_runs(const LoraRows& rows, Visit&& visit) {
  for (int row = 0; row < rows.rows;) {
    const LoraWeight* const adapter = rows.adapters[row];
    int end = row + 1;
    while (end < rows.rows && rows.adapters[end] == adapter && end - row < kLinearRowBlock) ++end;
    if (adapter != nullptr && adapter[rows.layer].rank > 0) visit(adapter[rows.layer], row, end - row);
    row = end;
  }
}

// Cuts `count` units of `unit_bytes` into tasks of whole `multiple`s.
template <class Add>
void cut(int count, size_t unit_bytes, int multiple, Add&& add) {
  const int requested = static_cast<int>(kTaskBytes / unit_bytes) / multiple * multiple;
  const int step = std::max(multiple, requested);
  for (int first = 0; first < count; first += step) add(first, std::min(first + step, count));
}

}  // namespace

void LoraShrink::run(ThreadPool& pool) const {
  std::vector<LoraTask>& scratch = tasks;
  scratch.clear();
  for_runs(rows, [&](const LoraWeight& weight, int row, int count) {
    cut(weight.rank, static_cast<size_t>(in_features) * element_bytes(weight), 4,
        [&](int first, int last) { scratch.push_back({&weight, row, count, 0, first, last}); });
  });
  const KernelTable& table = kernels();
  pool.parallel_for(static_cast<int>(scratch.size()), [&](int index) {
    const LoraTask& task = scratch[static_cast<size_t>(index)];
    LinearWeight down;
    down.data = task.weight->down;
    down.format = task.weight->format;
    down.out_features = rows.max_rank;
    down.in_features = in_features;
    const auto row = static_cast<size_t>(task.row);
    table.linear_block(down, x + row * in_features, task.rows, task.first, task.last, shrunk + row * rows.max_rank,
                       false);
  });
}

void LoraGather::run(ThreadPool&) const {
  const auto gather = [&](const auto* down, int rank, int row) {
    for (int k = 0; k < rank; ++k) {
      shrunk[static_cast<size_t>(row) * rows.max_rank + k] =
          to_float(down[static_cast<size_t>(k) * in_features + inputs[row]]);
    }
  };
  for (int row = 0; row < rows.rows; ++row) {
    if (rows.adapters[row] == nullptr) continue;
    const LoraWeight& weight = rows.adapters[row][rows.layer];
    if (weight.format == WeightFormat::kFloat32) {
      gather(static_cast<const float*>(weight.down), weight.rank, row);
    } else if (weight.format == WeightFormat::kFloat16) {
      gather(static_cast<const half*>(weight.down), weight.rank, row);
    } else {
      gather(static_cast<const bf16*>(weight.down), weight.rank, row);
    }
  }
}

void LoraExpand::run(ThreadPool& pool) const {
  std::vector<LoraTask>& scratch = tasks;
  scratch.clear();
  for_runs(rows, [&](const LoraWeight& weight, int row, int count) {
    for (int part = 0; part < weight.part_count; ++part) {
      const LoraPart& lora_part = weight.parts[part];
      cut(lora_part.out_features, static_cast<size_t>(lora_part.rank) * element_bytes(weight), 64,
          [&](int first, int last) { scratch.push_back({&weight, row, count, part, first, last}); });
    }
  });
  const KernelTable& table = kernels();
  pool.parallel_for(static_cast<int>(scratch.size()), [&](int index) {
    const LoraTask& task = scratch[static_cast<size_t>(index)];
    const LoraPart& part = task.weight->parts[task.part];
    for (size_t row = static_cast<size_t>(task.row); row < static_cast<size_t>(task.row + task.rows); ++row) {
      table.lora_expand_block(part, task.weight->format, shrunk + row * rows.max_rank + part.first_rank, task.first,
                              task.last, y + row * out_features + part.first_out);
    }
  });
}

}  // namespace turbomind
