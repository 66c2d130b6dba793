#include "device/cuda/prefill.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include "device/cuda/attention_self_check.h"
#include "device/cuda/operators.h"

namespace turbomind {

namespace {

constexpr size_t kMinPlanBytes = size_t{64} << 10;

// Prompts at the borders of tiles, of their rows and of their keys, and the ends of longer ones.
const std::vector<std::pair<int, int>> kTried = {{2, 2}, {129, 129}, {20, 300}, {193, 290}};

SelfCheck try_prefill(CudaOperators& ops, const AttentionParams& like, const cuda::PrefillKernel& kernel) {
  AttentionSelfCheck sequences(ops, like, kTried);
  return sequences.run([&] {
    const HeadsView q = sequences.queries();
    cuda::rope_and_write(ops.stream(), {}, sequences.params(), sequences.device_spans(), q, nullptr, {}, {}, true);
    const cuda::PrefillPlan plan{sequences.spans(), like.num_heads, kernel.tile_rows, cuda::multiprocessor_count()};
    std::vector<int32_t> filled(plan.size());
    cuda::fill_prefill_plan(plan, filled.data());
    const AlignedBuffer plan_on_device = on_device(ops, filled);
    const AlignedBuffer memory = cuda::allocate(cuda::prefill_scratch_bytes(like, q.rows));
    cuda::prefill_attention(ops.stream(), {memory.as<void>(), memory.size()}, kernel, plan,
                            plan_on_device.as<int32_t>(), sequences.params(), sequences.blocks(), q, sequences.out());
    return sequences.fetch();
  });
}

}  // namespace

CudaPrefill::CudaPrefill(CudaOperators& ops) : ops_(ops), may_be_used_(may_use_library(LibraryUse::kPrompts)) {}

void CudaPrefill::set_spans(const std::vector<cuda::DeviceSpan>& spans) {
  plan_.spans.clear();
  is_planned_ = false;
  rounded_ = nullptr;
  if (!may_be_used_) return;
  size_t rows = 0;
  max_keys_ = 0;
  for (const cuda::DeviceSpan& span : spans) {
    if (span.count <= 1) continue;
    plan_.spans.push_back(span);
    rows += static_cast<size_t>(span.count);
    max_keys_ = std::max(max_keys_, span.first_position + span.count);
  }
  if (rows < plan_.spans.size() * cuda::kMinPrefillRows) plan_.spans.clear();
  if (kernel_ != nullptr) plan();
}

bool CudaPrefill::knows(const AttentionParams& params) {
  if (!may_be_used_ || plan_.spans.empty() || !cuda::is_prefill_attention(params, max_keys_)) return false;
  if (kernel_ == nullptr) {
    const auto* kernel = cuda::find_library_kernel<cuda::PrefillKernel>(
        [&](const cuda::PrefillKernel& candidate) { return candidate.dim == params.layout.key_dim; });
    if (kernel == nullptr) return false;
    const std::string name = std::string("attention of prompts by ") + kernel->name;
    may_be_used_ = passes_self_check(name, [&] { return try_prefill(ops_, params, *kernel); });
    if (!may_be_used_) return false;
    kernel_ = kernel;
    heads_ = params.num_heads;
    plan();
  }
  return is_planned_ && params.num_heads == heads_ && params.layout.key_dim == kernel_->dim;
}

void CudaPrefill::plan() {
  if (plan_.spans.empty()) return;
  plan_.heads = heads_;
  plan_.tile_rows = kernel_->tile_rows;
  plan_.multiprocessors = cuda::multiprocessor_count();
  const size_t bytes = plan_.size() * sizeof(int32_t);
  if (on_device_.size() < bytes) on_device_ = Staged(ops_, std::max(std::bit_ceil(bytes), kMinPlanBytes));
  cuda::fill_prefill_plan(plan_, on_device_.host<int32_t>());
  on_device_.upload(ops_, bytes);
  is_planned_ = true;
}

bool CudaPrefill::compute(const AttentionParams& params, const cuda::DeviceSpans& spans, const HeadsView& q,
                          const TypedRows& out) {
  const bool is_rounded = std::exchange(rounded_, nullptr) == q.first;
  if (!knows(params)) {
    if (is_rounded) throw internal_error("queries were rounded for another kernel");
    return false;
  }
  if (!is_rounded) cuda::rope_and_write(ops_.stream(), {}, params, spans, q, nullptr, {}, {}, true);
  cuda::prefill_attention(ops_.stream(), ops_.scratch(cuda::prefill_scratch_bytes(params, q.rows)), *kernel_, plan_,
                          on_device_.device<int32_t>(), params, spans.blocks, q, out);
  return true;
}

}  // namespace turbomind
