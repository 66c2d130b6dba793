#include "device/cpu_operators.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>

#include "base/cpu_share.h"
#include "kernels/cpu/isa.h"
#include "kernels/embedding.h"
#include "kernels/head_linear.h"
#include "kernels/lora.h"
#include "kernels/sparse_attention.h"
#include "kernels/streams.h"

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

CpuOperators::CpuOperators(int threads, RankPlace place)
    : place_(std::move(place)), pool_(threads > 0 ? threads : available_cpu_count()) {
  kernels();
}

const OperationTable& CpuOperators::table() {
  static const OperationTable all = [] {
    OperationTable table;
    table.add<CpuOperators, turbomind::causal_conv>(kCausalConv);
    table.add<CpuOperators, &CpuOperators::choose_keys>(kChooseKeys);
    table.add<CpuOperators, turbomind::correct_streams>(kCorrectStreams);
    table.add<CpuOperators, turbomind::cut_rows>(kCutRows);
    table.add<CpuOperators, turbomind::head_linear>(kHeadLinear);
    table.add<CpuOperators, turbomind::lora_expand>(kLoraExpand);
    table.add<CpuOperators, turbomind::lora_gather>(kLoraGather);
    table.add<CpuOperators, turbomind::lora_shrink>(kLoraShrink);
    table.add<CpuOperators, turbomind::match_rms>(kMatchRms);
    table.add<CpuOperators, turbomind::mix_streams>(kMixStreams);
    table.add<CpuOperators, turbomind::recurrence>(kRecurrence);
    table.add<CpuOperators, turbomind::recurrence_gates>(kRecurrenceGates);
    table.add<CpuOperators, &CpuOperators::sparse_attention>(kSparseAttention);
    table.add<CpuOperators, turbomind::xielu>(kXielu);
    return table;
  }();
  return all;
}

size_t CpuOperators::free_memory() const {
  return available_memory();
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

void CpuOperators::fill_zero(void* data, size_t bytes) {
  std::memset(data, 0, bytes);
}

void CpuOperators::embed(const LinearWeight& table, const int32_t* tokens, int rows, float scale, float* y) {
  turbomind::embed(table, tokens, rows, scale, y);
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

void CpuOperators::linear(const LinearWeight& weight, const LinearInput& input, int rows, const TypedRows& y,
                          bool accumulate) {
  turbomind::linear(pool_, linear_scratch_, weight, input, rows, y.floats(), accumulate);
}

void CpuOperators::norm(const NormWeight& weight, const HeadsView& x, const HeadsView& y) {
  turbomind::norm(pool_, weight, x, y);
}

void CpuOperators::rope_table(const RopeAngles& angles, int rows, float* cosine, float* sine) {
  turbomind::rope_table(pool_, angles, rows, cosine, sine);
}

void CpuOperators::rope(const RopeTable& table, const HeadsView& heads, const float* factors) {
  turbomind::rope(pool_, table, heads, factors);
}

void CpuOperators::activate(Activation activation, const HeadsView& gate, const HeadsView& up, const HeadsView& y) {
  turbomind::activate(pool_, activation, gate, up, y);
}

void CpuOperators::apply(const Pointwise& function, const HeadsView& x) {
  turbomind::apply(pool_, function, x);
}

void CpuOperators::add_scaled(float scale, const float* x, int rows, int size, float* y) {
  turbomind::add_scaled(pool_, scale, x, rows, size, y);
}

void CpuOperators::all_reduce(float* x, size_t count) {
  if (place_.exchange) place_.exchange->all_reduce(place_.rank, x, count);
}

void CpuOperators::all_gather(float* x, size_t count) {
  if (place_.exchange) place_.exchange->all_gather(place_.rank, x, count);
}

AttentionParams CpuOperators::with_spans(AttentionParams params) const {
  const std::vector<AttentionSpan>& spans =
      spans_[static_cast<size_t>(params.set.use)].at(static_cast<size_t>(params.set.table));
  params.spans = spans.data();
  params.span_count = static_cast<int>(spans.size());
  return params;
}

void CpuOperators::rope_and_write(const RopeTable& table, const AttentionParams& params, const HeadsView& q,
                                  const float* factors, const HeadsView& k, const HeadsView& v) {
  turbomind::rope_and_write(pool_, table, with_spans(params), q, factors, k, v);
}

void CpuOperators::paged_attention(const AttentionParams& params, const HeadsView& q, const TypedRows& out) {
  const AttentionParams whole = with_spans(params);
  const size_t bytes = attention_workspace_floats(whole) * sizeof(float);
  if (attention_workspace_.size() < bytes) attention_workspace_ = AlignedBuffer(bytes);
  turbomind::paged_attention(pool_, whole, q, attention_workspace_.as<float>(), out.floats());
}

void CpuOperators::choose_keys(const AttentionParams& index, int top_k, const HeadsView& q, const float* weights,
                               int32_t* chosen) {
  turbomind::choose_keys(pool_, with_spans(index), top_k, q, weights, chosen);
}

void CpuOperators::sparse_attention(const AttentionParams& params, int top_k, const int32_t* chosen, const HeadsView& q,
                                    float* out) {
  turbomind::sparse_attention(pool_, with_spans(params), top_k, chosen, q, out);
}

void CpuOperators::route(const RouterParams& params, const float* logits, int rows, int32_t* experts, float* weights) {
  turbomind::route(pool_, params, logits, rows, experts, weights);
}

void CpuOperators::add_experts(Activation activation, const std::vector<ExpertWeight>& experts, const float* x,
                               int rows, int top_k, const int32_t* chosen, const float* weights, float* y) {
  turbomind::add_experts(pool_, expert_scratch_, activation, experts, x, rows, top_k, chosen, weights, y);
}

}  // namespace turbomind
