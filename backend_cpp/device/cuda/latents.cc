#include "device/cuda/latents.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "device/cuda/operators.h"
#include "device/cuda/trial.h"

namespace turbomind {

namespace {

constexpr size_t kLeastPlanBytes = size_t{64} << 10;  // decodes of most models fit

// Sequences at the borders of tiles of keys, one whose keys are split, and the end of a prompt.
class LatentProblem {
 public:
  LatentProblem(CudaOperators& ops, const AttentionParams& like) : ops_(ops), params_(like) {
    params_.layout.num_layers = 1;
    params_.layer = 0;
    const CacheLayout& layout = params_.layout;
    std::vector<int32_t> blocks;
    for (const auto& [rows, keys] : {std::pair{1, 1}, {1, 64}, {1, 65}, {20, 90}, {1, 700}, {3, 130}}) {
      spans_.push_back({rows_, rows, keys - rows, static_cast<int32_t>(blocks.size())});
      rows_ += rows;
      most_rows_ = std::max(most_rows_, rows);
      most_keys_ = std::max(most_keys_, keys);
      for (int i = 0; i < cuda::divide_up(keys, layout.block_len); ++i) {
        blocks.push_back(static_cast<int32_t>(blocks.size()));
      }
    }
    // A block's neighbours belong to others.
    for (size_t i = 0; i + 1 < blocks.size(); i += 2) std::swap(blocks[i], blocks[blocks.size() - 1 - i]);
    keys_ = trial_numbers(blocks.size() * layout.block_len * cuda::kLatentKey, 1.0f, 1);
    block_ids_ = std::move(blocks);
    blocks_ = on_device(ops, block_ids_);
    spans_on_device_ = on_device(ops, spans_);
    // Scores of deviation 3: a few keys matter, whichever they are.
    const float deviation = 3.0f / std::sqrt(static_cast<float>(cuda::kLatentKey));
    q_ = on_device(ops, trial_numbers(static_cast<size_t>(rows_) * params_.num_heads * cuda::kLatentKey, deviation, 2));
    out_ = cuda::allocate(out_size() * sizeof(float));
  }

  Trial run(const cuda::LatentKernel& kernel) {
    Trial trial;
    fill_cache(false);
    trial.theirs = theirs(kernel);
    trial.ours = ours();
    fill_cache(true);
    trial.magnitude = ours();
    // Weights, parts and results in bfloat16: three times 2^-9.
    trial.relative = 0x1p-7f;
    trial.absolute = 1e-4f;
    return trial;
  }

 private:
  size_t out_size() const { return static_cast<size_t>(rows_) * params_.num_heads * cuda::kLatentRank; }

  // Values are latents, or their absolute values; what no sequence has written is NaN.
  void fill_cache(bool has_absolute_values) {
    const CacheLayout& layout = params_.layout;
    const size_t block_size = layout.block_bytes() / sizeof(uint16_t);
    std::vector<uint16_t> pool(block_ids_.size() * block_size, 0x7FC0);
    for (const cuda::DeviceSpan& span : spans_) {
      for (int p = 0; p < span.first_position + span.count; ++p) {
        const auto block =
            static_cast<size_t>(block_ids_[static_cast<size_t>(span.first_block + p / layout.block_len)]);
        const auto slot = static_cast<size_t>(p % layout.block_len);
        const float* key = keys_.data() + (block * layout.block_len + slot) * cuda::kLatentKey;
        uint16_t* first = pool.data() + block * block_size;
        uint16_t* cached = first + layout.key_offset(0, 0) / sizeof(uint16_t) + slot * cuda::kLatentKey;
        uint16_t* value = first + layout.value_offset(0, 0) / sizeof(uint16_t) + slot * cuda::kLatentRank;
        for (int d = 0; d < cuda::kLatentKey; ++d) cached[d] = to_bf16(key[d]).bits;
        for (int d = 0; d < cuda::kLatentRank; ++d) {
          const float latent = key[cuda::kLatentRope + d];
          value[d] = to_bf16(has_absolute_values ? std::abs(latent) : latent).bits;
        }
      }
    }
    pool_ = on_device(ops_, pool);
    params_.pool = pool_.as<std::byte>();
  }

  HeadsView queries() const {
    const auto dim = static_cast<size_t>(cuda::kLatentKey);
    return {q_.as<float>(), rows_, params_.num_heads * dim, params_.num_heads, dim, cuda::kLatentKey};
  }

  std::vector<float> fetch() {
    std::vector<float> out(out_size());
    ops_.download(out_.as<void>(), out_.size(), out.data());
    return out;
  }

  std::vector<float> ours() {
    const cuda::DeviceSpans spans{spans_on_device_.as<cuda::DeviceSpan>(), blocks_.as<int32_t>(),
                                  static_cast<int>(spans_.size()), most_rows_, most_keys_};
    const AlignedBuffer workspace = cuda::allocate(cuda::attention_workspace_floats(params_, spans) * sizeof(float));
    cuda::paged_attention(ops_.stream(), params_, spans, queries(), workspace.as<float>(), out_.as<float>());
    return fetch();
  }

  std::vector<float> theirs(const cuda::LatentKernel& kernel) {
    const auto pieces = cuda::cut_latents(spans_, 0, params_.num_heads, cuda::multiprocessor_count());
    std::vector<int32_t> plan(pieces.front().plan_size());
    cuda::fill_latent_plan(pieces.front(), plan.data());
    const AlignedBuffer plan_on_device = on_device(ops_, plan);
    const AlignedBuffer memory = cuda::allocate(cuda::latent_scratch_bytes(pieces));
    cuda::latent_attention(ops_.stream(), {memory.as<void>(), memory.size()}, kernel, pieces,
                           plan_on_device.as<int32_t>(), params_, blocks_.as<int32_t>(), queries(), out_.as<float>());
    return fetch();
  }

  CudaOperators& ops_;
  AttentionParams params_;
  std::vector<cuda::DeviceSpan> spans_;
  int rows_ = 0;
  int most_rows_ = 0;
  int most_keys_ = 0;
  std::vector<int32_t> block_ids_;
  std::vector<float> keys_;  // [blocks, block_len, kLatentKey]
  AlignedBuffer blocks_;
  AlignedBuffer spans_on_device_;
  AlignedBuffer q_;
  AlignedBuffer out_;
  AlignedBuffer pool_;
};

}  // namespace

CudaLatents::CudaLatents(CudaOperators& ops)
    : ops_(ops), kernel_(may_use_libraries() ? cuda::latent_kernel_for(cuda::compute_capability()) : nullptr) {}

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
    if (!passes_trial(name, [&] { return LatentProblem(ops_, params).run(*kernel_); })) {
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
    ops_.forget_graphs();  // they hold the old address
    plan_ = Staged(ops_, std::max(std::bit_ceil(bytes), kLeastPlanBytes));
  }
  auto* next = plan_.host<int32_t>();
  for (const cuda::LatentPiece& piece : pieces_) {
    cuda::fill_latent_plan(piece, next);
    next += piece.plan_size();
  }
  plan_.upload(ops_, bytes);
  is_planned_ = !pieces_.empty();
}

bool CudaLatents::attend(const AttentionParams& params, const int32_t* blocks, const HeadsView& q, float* out) {
  if (!knows(params) || !is_planned_) return false;
  cuda::latent_attention(ops_.stream(), ops_.scratch(cuda::latent_scratch_bytes(pieces_)), *kernel_, pieces_,
                         plan_.device<int32_t>(), params, blocks, q, out);
  return true;
}

}  // namespace turbomind
