#include "device/cuda/scaled.h"

#include <cmath>
#include <random>

#include "device/cuda/operators.h"
#include "device/cuda/self_check.h"
#include "kernels/cuda/linear/gemms.h"
#include "kernels/packed_weight.h"

namespace turbomind {

namespace {

constexpr int kRows = 208;
constexpr int kOutputs = 272;
constexpr int kInputs = 384;
constexpr int kBlock = 128;
constexpr uint8_t kSign = 0x80;

// Ours is cuda::linear without the library. x is such that rounding it to float8 changes nothing: numbers of float8
// with the largest in every block.
SelfCheck multiply(CudaOperators& ops, cuda::Gemm& gemm, cuda::GemmScales scales, DType result) {
  std::mt19937 engine(1);
  const bool has_blocks = scales == cuda::GemmScales::kBlocks;
  const PackedShape shape{kOutputs, kInputs, 8, kBlock, true};
  std::vector<uint8_t> quantized(shape.quantized_bytes());
  for (uint8_t& q : quantized) q = random_float8(engine).bits;
  std::vector<float> x(size_t{kRows} * kInputs);
  for (size_t i = 0; i < x.size(); ++i)
    x[i] = to_float(i % kBlock == 5 ? float8{kLargestFloat8Bits} : random_float8(engine));
  std::vector<float> output_scales(kOutputs);
  std::vector<float> block_scales(has_blocks ? shape.scale_count() : 0);
  for (std::vector<float>* scale_list : {&output_scales, &block_scales}) {
    for (float& scale : *scale_list) scale = std::ldexp(1.0f, -static_cast<int>(engine() % 4));
  }
  const AlignedBuffer output_scales_on_device = on_device(ops, output_scales);
  const AlignedBuffer block_scales_on_device = on_device(ops, block_scales);

  const auto product = [&](cuda::GemmScales by_library, DType type) {
    const AlignedBuffer inputs = on_device(ops, x);
    const AlignedBuffer weights = on_device(ops, quantized);
    LinearWeight weight;
    weight.data = weights.as<void>();
    weight.format = WeightFormat::kFloat8;
    weight.out_features = kOutputs;
    weight.in_features = kInputs;
    weight.group = kBlock;
    weight.block_scales = block_scales_on_device.as<float>();
    weight.output_scales = output_scales_on_device.as<float>();
    weight.is_row_major = cuda::has_ring(weight);  // any order is as random
    const AlignedBuffer memory = cuda::allocate(cuda::linear_scratch_bytes(weight, kRows));
    const AlignedBuffer y = on_device(ops, std::vector<float>(size_t{kRows} * kOutputs, NAN));
    cuda::linear(ops.stream(), {&gemm, {memory.as<void>(), memory.size()}, nullptr, by_library}, weight,
                 inputs.as<float>(), kRows, {y.as<void>(), type}, false);
    std::vector<float> host(size_t{kRows} * kOutputs);
    if (type == DType::kFloat32) {
      ops.download(y.as<void>(), y.size(), host.data());
    } else {
      std::vector<bf16> narrow(host.size());
      ops.download(y.as<void>(), narrow.size() * sizeof(bf16), narrow.data());
      for (size_t i = 0; i < host.size(); ++i) host[i] = to_float(narrow[i]);
    }
    return host;
  };
  SelfCheck check;
  check.candidate = product(scales, result);
  check.native = product(cuda::GemmScales::kNone, DType::kFloat32);
  for (uint8_t& q : quantized) q = static_cast<uint8_t>(q & ~kSign);
  for (float& value : x) value = std::abs(value);
  check.magnitude = product(cuda::GemmScales::kNone, DType::kFloat32);
  // Both multiply exactly; tensor cores sum products of float8 in fewer bits than float32 has.
  check.relative = result == DType::kFloat32 ? 0x1p-9f : 0x1p-8f;
  check.absolute = 1e-6f;
  return check;
}

}  // namespace

CudaScaled::CudaScaled(CudaOperators& ops, cuda::Gemm& gemm)
    : ops_(ops), gemm_(gemm), may_be_used_(may_use_library(LibraryUse::kScales)) {}

cuda::GemmScales CudaScaled::scales_for(const LinearWeight& weight, int rows) {
  const cuda::GemmScales scales = cuda::library_scales(weight);
  if (!may_be_used_ || !weight.is_row_major || scales == cuda::GemmScales::kNone || rows < cuda::kDequantizeRows ||
      !gemm_.has_scales(scales)) {
    return cuda::GemmScales::kNone;
  }
  return passes(scales, DType::kFloat32) ? scales : cuda::GemmScales::kNone;
}

LinearTypes CudaScaled::types_of(const LinearWeight& weight, int rows) {
  const cuda::GemmScales scales = scales_for(weight, rows);
  LinearTypes types = cuda::linear_types(weight, rows, scales);
  const bool is_in_16_bits = types.result != DType::kFloat32 && scales != cuda::GemmScales::kNone;
  if (is_in_16_bits && !passes(scales, types.result)) types.result = DType::kFloat32;
  return types;
}

bool CudaScaled::passes(cuda::GemmScales scales, DType result) {
  const auto [entry, is_new] = passed_.try_emplace({scales, result}, false);
  if (is_new) {
    const bool has_blocks = scales == cuda::GemmScales::kBlocks;
    entry->second = passes_self_check(std::string("float8 with scales of ") + (has_blocks ? "blocks" : "rows") +
                                          " by cuBLASLt" + (result == DType::kFloat32 ? "" : ", rounded to bfloat16,"),
                                      [&] { return multiply(ops_, gemm_, scales, result); });
  }
  return entry->second;
}

}  // namespace turbomind
