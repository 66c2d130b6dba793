#include "device/cuda/grouped.h"

#include <cmath>
#include <string>
#include <utility>

#include "device/cuda/operators.h"
#include "device/cuda/trial.h"
#include "kernels/cuda/grouped/grouped_product.h"

namespace turbomind {

namespace {

constexpr int kOutputs = 200;  // not whole tiles
constexpr int kInputs = 136;
constexpr int kExperts = 6;

// Experts without rows, with one, with a tile and one more, and with several tiles; pairs of no expert behind them.
const std::vector<cuda::ExpertRows> kParts = {{0, 0, 129}, {2, 129, 1}, {3, 130, 64}, {5, 194, 300}};
constexpr int kComputed = 494;
constexpr int kPairs = 500;
constexpr int kSources = 70;

std::vector<uint16_t> rounded(const std::vector<float>& numbers) {
  std::vector<uint16_t> bits;
  for (const float number : numbers) bits.push_back(to_bf16(number).bits);
  return bits;
}

Trial multiply(CudaOperators& ops, cuda::Gemm& gemm, const cuda::GroupedKernel& kernel) {
  std::vector<float> x = trial_numbers(size_t{kSources} * kInputs, 1.0f, 1);
  std::vector<float> w = trial_numbers(size_t{kExperts} * kOutputs * kInputs, 1.0f, 2);
  std::vector<int32_t> sources;
  std::vector<int32_t> experts(kPairs, -1);
  for (int pair = 0; pair < kPairs; ++pair) sources.push_back(pair * 37 % kSources);
  for (const auto& [expert, first, count] : kParts) {
    for (int i = 0; i < count; ++i) experts[static_cast<size_t>(first + i)] = expert;
  }
  const AlignedBuffer sources_on_device = on_device(ops, sources);
  const AlignedBuffer experts_on_device = on_device(ops, experts);
  const AlignedBuffer parts = on_device(ops, kParts);
  const AlignedBuffer part_count = on_device(ops, std::vector<int32_t>{static_cast<int32_t>(kParts.size())});
  const AlignedBuffer gemm_memory = cuda::allocate(cuda::kGemmScratchBytes);
  const auto result = [&](const AlignedBuffer& y) {
    std::vector<float> host(size_t{kComputed} * kOutputs);
    ops.download(y.as<void>(), host.size() * sizeof(float), host.data());
    return host;
  };
  const AlignedBuffer y = on_device(ops, std::vector<float>(size_t{kPairs} * kOutputs, NAN));

  // Expert by expert, with inputs gathered here.
  const auto ours = [&] {
    std::vector<float> gathered;
    for (const int32_t source : sources) {
      const auto row = x.begin() + source * kInputs;
      gathered.insert(gathered.end(), row, row + kInputs);
    }
    const AlignedBuffer inputs = on_device(ops, rounded(gathered));
    const AlignedBuffer weights = on_device(ops, rounded(w));
    for (const auto& [expert, first, count] : kParts) {
      cuda::GemmCall call;
      call.type = cuda::GemmType::kBFloat16;
      call.x = inputs.as<uint16_t>() + first * kInputs;
      call.w = weights.as<uint16_t>() + expert * kOutputs * kInputs;
      call.y = y.as<float>() + first * kOutputs;
      call.rows = count;
      call.outputs = kOutputs;
      call.inputs = kInputs;
      call.y_stride = kOutputs;
      gemm.multiply(ops.stream(), {gemm_memory.as<void>(), gemm_memory.size()}, call);
    }
    return result(y);
  };

  Trial trial;
  trial.ours = ours();
  {
    const AlignedBuffer weights = on_device(ops, rounded(w));
    std::vector<LinearWeight> views(kExperts);
    for (size_t e = 0; e < views.size(); ++e) {
      views[e].data = weights.as<uint16_t>() + e * kOutputs * kInputs;
      views[e].format = WeightFormat::kBFloat16;
      views[e].out_features = kOutputs;
      views[e].in_features = kInputs;
    }
    const AlignedBuffer table = on_device(ops, views);
    const AlignedBuffer inputs = on_device(ops, x);
    const AlignedBuffer theirs = on_device(ops, std::vector<float>(size_t{kPairs} * kOutputs, NAN));
    const AlignedBuffer memory = cuda::allocate(cuda::grouped_scratch_bytes(views.front(), kExperts, kPairs));
    cuda::grouped_product(
        ops.stream(), {memory.as<void>(), memory.size()}, kernel,
        {views.front(), table.as<std::byte>(), sizeof(LinearWeight), kExperts, parts.as<cuda::ExpertRows>(),
         part_count.as<int32_t>(), inputs.as<float>(), sources_on_device.as<int32_t>(), experts_on_device.as<int32_t>(),
         kPairs, theirs.as<float>()});
    trial.theirs = result(theirs);
  }
  for (std::vector<float>* numbers : {&x, &w}) {
    for (float& number : *numbers) number = std::abs(number);
  }
  trial.magnitude = ours();
  // Both sum exact products in float32, in orders of their own; wgmma keeps a few bits fewer than float32.
  trial.relative = 0x1p-12f;
  trial.absolute = 1e-6f;
  return trial;
}

}  // namespace

CudaGrouped::CudaGrouped(CudaOperators& ops, cuda::Gemm& gemm) : ops_(ops), gemm_(gemm) {
  if (may_use_libraries()) untried_ = cuda::grouped_kernels_for(cuda::compute_capability());
}

const cuda::GroupedKernel* CudaGrouped::kernel_for(const cuda::ExpertTable& experts, int rows, int top_k) {
  if ((!chosen_ && untried_.empty()) || !cuda::suits_library(experts, rows, top_k)) return nullptr;
  while (!chosen_ && !untried_.empty()) {
    const cuda::GroupedKernel kernel = untried_.front();
    untried_.erase(untried_.begin());
    if (passes_trial(std::string("products of experts by ") + kernel.name,
                     [&] { return multiply(ops_, gemm_, kernel); })) {
      chosen_ = kernel;
    }
  }
  return chosen_ ? &*chosen_ : nullptr;
}

}  // namespace turbomind
