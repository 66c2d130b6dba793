#include "device/cpu_operators.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>

#include "base/cpu_share.h"
#include "kernels/all_operations.h"
#include "kernels/cpu/isa.h"

namespace turbomind {

namespace {

size_t read_number(const char* path) {
  std::ifstream file(path);
  size_t number = 0;
  return file >> number ? number : std::numeric_limits<size_t>::max();
}

}  // namespace

size_t available_memory() {
  size_t available = std::numeric_limits<size_t>::max();
  std::ifstream meminfo("/proc/meminfo");
  std::string key;
  for (size_t kilobytes; meminfo >> key >> kilobytes; meminfo.ignore(64, '\n')) {
    if (key == "MemAvailable:") available = kilobytes << 10;
  }
  const size_t limit = read_number("/sys/fs/cgroup/memory.max");
  if (limit != std::numeric_limits<size_t>::max()) {
    const size_t used = read_number("/sys/fs/cgroup/memory.current");
    available = std::min(available, limit > used ? limit - used : 0);
  }
  return available;
}

CpuOperators::CpuOperators(int threads, RankLink link)
    : link_(std::move(link)), pool_(threads > 0 ? threads : available_cpu_count()) {
  kernels();
}

const OperationTable& CpuOperators::operations() const {
  static const OperationTable all = OperationTable::of<CpuOperators>(AllOperations{});
  return all;
}

void CpuOperators::transfer(Transfer transfer, const void* source, size_t bytes, void* destination) {
  if (transfer != Transfer::kWithin) {
    std::memcpy(destination, source, bytes);
    return;
  }
  constexpr size_t kPart = size_t{128} << 10;  // one thread reads memory at half its rate, or less
  const auto part = [&](int index) {
    const size_t begin = static_cast<size_t>(index) * kPart;
    std::memcpy(static_cast<std::byte*>(destination) + begin, static_cast<const std::byte*>(source) + begin,
                std::min(kPart, bytes - begin));
  };
  pool_.parallel_for(static_cast<int>((bytes + kPart - 1) / kPart), part);
}

void CpuOperators::scatter_rows(const float* x, const int32_t* indices, int count, int size, float* y,
                                bool accumulate) {
  const auto width = static_cast<size_t>(size);
  for (int i = 0; i < count; ++i) {
    const float* from = x + i * width;
    float* to = y + indices[i] * width;
    if (accumulate) {
      std::transform(from, from + width, to, to, std::plus<>());
    } else {
      std::copy_n(from, width, to);
    }
  }
}

void CpuOperators::copy_heads(const HeadsView& from, const HeadsView& to) {
  pool_.parallel_for(from.rows, [&](int row) {
    for (int h = 0; h < from.heads; ++h) {
      std::copy_n(from.head(static_cast<size_t>(row), h), from.head_dim, to.head(static_cast<size_t>(row), h));
    }
  });
}

AttentionParams CpuOperators::with_spans(AttentionParams params) const {
  const std::vector<AttentionSpan>& spans =
      spans_[static_cast<size_t>(params.set.use)].at(static_cast<size_t>(params.set.table));
  params.spans = spans.data();
  params.span_count = static_cast<int>(spans.size());
  return params;
}

void CpuOperators::paged_attention(const AttentionParams& params, const HeadsView& q, const TypedRows& out) {
  const AttentionParams whole = with_spans(params);
  const size_t bytes = attention_workspace_floats(whole) * sizeof(float);
  if (attention_workspace_.size() < bytes) attention_workspace_ = AlignedBuffer(bytes);
  turbomind::paged_attention(pool_, whole, q, attention_workspace_.as<float>(), out.floats());
}

}  // namespace turbomind
