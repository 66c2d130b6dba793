#include "device/cuda/latents.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "device/cuda/attention_self_check.h"
#include "device/cuda/operators.h"

namespace turbomind {

namespace {

constexpr size_t kMinPlanBytes = size_t{64} << 10;  // decodes of most models fit

// Sequences at the borders of tiles of keys, one whose keys are split, and the end of a prompt.
const std::vector<std::pair<int, int>> kTried = {{1, 1}, {1, 64}, {1, 65}, {20, 90}, {1, 700}, {3, 130}};

SelfCheck try_latents(CudaOperators& ops, const AttentionParams& like, const cuda::LatentKernel& kernel) {
  AttentionSelfCheck sequences(ops, like, kTried, cuda::kLatentRope);
  return sequences.run([&] {
    const auto pieces = cuda::cut_latents(sequences.spans(), 0, like.num_heads, cuda::multiprocessor_count());
    std::vector<int32_t> plan(pieces.front().plan_size());
    cuda::fill_latent_plan(pieces.front(), plan.data());
    const AlignedBuffer plan_on_device = on_device(ops, plan);
    const AlignedBuffer memory = cuda::allocate(cuda::latent_scratch_bytes(pieces));
    cuda::latent_attention(ops.stream(), {memory.as<void>(), memory.size()}, kernel, pieces,
                           plan_on_device.as<int32_t>(), sequences.params(), sequences.blocks(), sequences.queries(),
                           sequences.out());
    return sequences.fetch();
  });
}

}  // namespace

CudaLatents::CudaLatents(CudaOperators& ops) : ops_(ops) {
  if (!may_use_library(LibraryUse::kLatents)) return;
  kernel_ = cuda::find_library_kernel<cuda::LatentKernel>([](const auto&) { return true; });
}

void CudaLatents::set_spans(std::vector<cuda::DeviceSpan> spans, int padded_spans) {
  if (kernel_ == nullptr) return;
  spans_ = std::move(spans);
  padded_spans_ = padded_spans;
  is_planned_ = false;
  if (heads_ > 0) plan();
}

// Whether the kernel computes this, and may: the first time it is asked it is tried.
bool CudaLatents::knows(const AttentionParams& params) {
  if (kernel_ == nullptr || !cuda::is_latent_attention(params)) return false;
  if (heads_ == 0) {
    const std::string name = std::string("latent attention by ") + kernel_->name;
    if (!passes_self_check(name, [&] { return try_latents(ops_, params, *kernel_); })) {
      kernel_ = nullptr;
      return false;
    }
    heads_ = params.num_heads;
    plan();
  }
  return params.num_heads == heads_;
}

void CudaLatents::plan() {
  pieces_ = cuda::cut_latents(spans_, padded_spans_, heads_, cuda::multiprocessor_count());
  size_t count = 0;
  for (const cuda::LatentPiece& piece : pieces_) count += piece.plan_size();
  const size_t bytes = count * sizeof(int32_t);
  if (plan_.size() < bytes) {
    ops_.clear_graphs();  // they hold the old address
    plan_ = Staged(ops_, std::max(std::bit_ceil(bytes), kMinPlanBytes));
  }
  auto* next = plan_.host<int32_t>();
  for (const cuda::LatentPiece& piece : pieces_) {
    cuda::fill_latent_plan(piece, next);
    next += piece.plan_size();
  }
  plan_.upload(ops_, bytes);
  is_planned_ = !pieces_.empty();
}

bool CudaLatents::compute(const AttentionParams& params, const int32_t* blocks, const HeadsView& q, float* out) {
  if (!knows(params) || !is_planned_) return false;
  cuda::latent_attention(ops_.stream(), ops_.scratch(cuda::latent_scratch_bytes(pieces_)), *kernel_, pieces_,
                         plan_.device<int32_t>(), params, blocks, q, out);
  return true;
}

}  // namespace turbomind
