#include "device/cuda/grouped.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <string>

#include "device/cuda/operators.h"
#include "device/cuda/self_check.h"
#include "kernels/cuda/grouped/grouped_gemm.h"
#include "kernels/packed_weight.h"

namespace turbomind {

namespace {

constexpr int kOutputs = 208;  // not whole tiles
constexpr int kInputs = 264;
constexpr int kExperts = 6;

// Experts without rows, with one, with a tile and one more, and with several tiles; pairs of no expert after them.
const std::vector<ExpertRows> kParts = {{0, 0, 129}, {2, 129, 1}, {3, 130, 64}, {5, 194, 302}};
constexpr int kComputed = 496;
constexpr int kPairs = 500;
constexpr int kRows = 125;

// Operands of a self-check: numbers that rounding does not change.
struct Numbers {
  std::vector<float> x;         // [kRows, kInputs]
  std::vector<std::byte> data;  // of the experts' weights, one after the other
  LinearWeight weight;          // of each, without pointers
  std::vector<float> block_scales;
  std::vector<float> output_scales;
};

Numbers bfloat16_numbers() {
  Numbers numbers;
  numbers.x = self_check_numbers(size_t{kRows} * kInputs, 1.0f, 1);
  for (const float number : self_check_numbers(size_t{kExperts} * kOutputs * kInputs, 1.0f, 2)) {
    const uint16_t bits = to_bf16(number).bits;
    numbers.data.insert(numbers.data.end(), {std::byte(bits & 0xFF), std::byte(bits >> 8)});
  }
  numbers.weight.format = WeightFormat::kBFloat16;
  return numbers;
}

// x is of float8, with the largest number in every block.
Numbers float8_numbers() {
  Numbers numbers;
  std::mt19937 engine(1);
  const PackedShape shape{kOutputs, kInputs, 8, cuda::kGroupBlock, true};
  numbers.x.resize(size_t{kRows} * kInputs);
  for (size_t i = 0; i < numbers.x.size(); ++i) {
    const bool is_largest = i % kInputs % cuda::kGroupBlock == 5;
    numbers.x[i] = to_float(is_largest ? float8{kLargestFloat8Bits} : random_float8(engine));
  }
  // In the order of tiles: any order is as random.
  for (size_t i = 0; i < kExperts * shape.quantized_bytes(); ++i)
    numbers.data.push_back(std::byte(random_float8(engine).bits));
  numbers.output_scales.resize(size_t{kExperts} * kOutputs);
  numbers.block_scales.resize(kExperts * shape.scale_count());
  for (std::vector<float>* scale_list : {&numbers.output_scales, &numbers.block_scales}) {
    for (float& scale : *scale_list) scale = std::ldexp(1.0f, -static_cast<int>(engine() % 4));
  }
  numbers.weight.format = WeightFormat::kFloat8;
  numbers.weight.group = cuda::kGroupBlock;
  return numbers;
}

class GroupedProblem {
 public:
  GroupedProblem(CudaOperators& ops, cuda::Gemm& gemm, Numbers numbers)
      : ops_(ops), gemm_(gemm), numbers_(std::move(numbers)) {
    for (int pair = 0; pair < kPairs; ++pair) slots_.push_back(pair < kComputed ? pair * 37 % kComputed : -1);
    block_scales_ = on_device(ops, numbers_.block_scales);
    output_scales_ = on_device(ops, numbers_.output_scales);
  }

  SelfCheck run(const cuda::GroupedKernel& kernel) {
    SelfCheck check;
    put_weights();
    check.candidate = candidate(kernel);
    check.native = native();
    for (float& number : numbers_.x) number = std::abs(number);
    const bool is_bytes = numbers_.weight.format == WeightFormat::kFloat8;
    for (size_t i = is_bytes ? 0 : 1; i < numbers_.data.size(); i += is_bytes ? 1 : 2) {
      numbers_.data[i] &= std::byte{0x7F};  // the byte with the sign
    }
    put_weights();
    check.magnitude = native();
    // Both sum exact products, in their own orders; wgmma keeps a few bits fewer than float32, of float8 still
    // fewer. Theirs are rounded to bfloat16 in the end.
    check.relative = is_bytes ? 0x1p-9f : 0x1p-12f;
    check.absolute = 1e-6f;
    constexpr float kRounding = 0x1p-8f;
    for (size_t i = 0; i < check.native.size(); ++i) {
      check.magnitude[i] += kRounding / check.relative * std::abs(check.native[i]);
    }
    return check;
  }

 private:
  void put_weights() {
    data_ = on_device(ops_, numbers_.data);
    weights_.assign(kExperts, numbers_.weight);
    const auto expert_bytes = numbers_.data.size() / kExperts;
    for (size_t e = 0; e < kExperts; ++e) {
      LinearWeight& weight = weights_[e];
      weight.data = data_.as<std::byte>() + e * expert_bytes;
      weight.out_features = kOutputs;
      weight.in_features = kInputs;
      if (numbers_.block_scales.empty()) continue;
      weight.block_scales = block_scales_.as<float>() + e * (numbers_.block_scales.size() / kExperts);
      weight.output_scales = output_scales_.as<float>() + e * kOutputs;
    }
  }

  template <class T>
  std::vector<T> fetch(const AlignedBuffer& y) {
    std::vector<T> host(size_t{kComputed} * kOutputs);
    ops_.download(y.as<void>(), host.size() * sizeof(T), host.data());
    return host;
  }

  // Room for float32 results; of bfloat16 it holds as little.
  AlignedBuffer no_results() { return on_device(ops_, std::vector<float>(size_t{kPairs} * kOutputs, NAN)); }

  // Expert by expert, with inputs gathered here.
  std::vector<float> native() {
    std::vector<float> gathered(size_t{kPairs} * kInputs);
    for (int pair = 0; pair < kComputed; ++pair) {
      std::copy_n(numbers_.x.begin() + pair / (kPairs / kRows) * kInputs, kInputs,
                  gathered.begin() + slots_[static_cast<size_t>(pair)] * kInputs);
    }
    const AlignedBuffer inputs = on_device(ops_, gathered);
    const AlignedBuffer memory = cuda::allocate(cuda::linear_scratch_bytes(weights_.front(), kPairs));
    const cuda::SplitCounters counters(ops_.stream());
    const AlignedBuffer y = no_results();
    for (const auto& [expert, first, count] : kParts) {
      cuda::linear(ops_.stream(),
                   {&gemm_, {memory.as<void>(), memory.size()}, counters.data(), cuda::GemmScales::kNone},
                   weights_[static_cast<size_t>(expert)], inputs.as<float>() + first * kInputs, count,
                   y.as<float>() + first * kOutputs, false);
    }
    return fetch<float>(y);
  }

  std::vector<float> candidate(const cuda::GroupedKernel& kernel) {
    std::vector<int32_t> experts(kPairs, -1);
    for (const auto& [expert, first, count] : kParts) {
      for (int i = 0; i < count; ++i) experts[static_cast<size_t>(first + i)] = expert;
    }
    const AlignedBuffer slots = on_device(ops_, slots_);
    const AlignedBuffer expert_of_pair = on_device(ops_, experts);
    const AlignedBuffer parts = on_device(ops_, kParts);
    const AlignedBuffer part_count = on_device(ops_, std::vector<int32_t>{static_cast<int32_t>(kParts.size())});
    const AlignedBuffer table = on_device(ops_, weights_);
    const AlignedBuffer inputs = on_device(ops_, numbers_.x);
    const AlignedBuffer y = no_results();
    const AlignedBuffer memory = cuda::allocate(cuda::grouped_scratch_bytes(weights_.front(), kExperts, kPairs));
    cuda::grouped_gemm(ops_.stream(), {memory.as<void>(), memory.size()}, kernel,
                       {weights_.front(), table.as<std::byte>(), sizeof(LinearWeight), kExperts, parts.as<ExpertRows>(),
                        part_count.as<int32_t>(), expert_of_pair.as<int32_t>(), kPairs, inputs.as<float>(), kRows,
                        slots.as<int32_t>(), y.as<void>()});
    const std::vector<bf16> rounded = fetch<bf16>(y);
    std::vector<float> results(rounded.size());
    std::transform(rounded.begin(), rounded.end(), results.begin(), [](bf16 number) { return to_float(number); });
    return results;
  }

  CudaOperators& ops_;
  cuda::Gemm& gemm_;
  Numbers numbers_;
  std::vector<int32_t> slots_;  // [kPairs]
  AlignedBuffer data_;
  AlignedBuffer block_scales_;
  AlignedBuffer output_scales_;
  std::vector<LinearWeight> weights_;  // on the host, of what is on the device
};

}  // namespace

CudaGrouped::CudaGrouped(CudaOperators& ops, cuda::Gemm& gemm) : ops_(ops), gemm_(gemm) {
  if (!may_use_library(LibraryUse::kExperts)) return;
  for (const cuda::GroupedKernel& kernel : cuda::library_kernels<cuda::GroupedKernel>()) {
    if (kernel.runs_on(cuda::compute_capability())) candidates_[kernel.type].untried.push_back(kernel);
  }
  for (auto& [type, candidates] : candidates_) {
    std::ranges::stable_sort(candidates.untried, std::greater<>(), &cuda::GroupedKernel::rank);
  }
}

const cuda::GroupedKernel* CudaGrouped::kernel_for(const cuda::ExpertTable& experts, int rows, int top_k) {
  const cuda::GroupedType type = cuda::library_type(experts, rows, top_k);
  auto& [untried, chosen] = candidates_[type];
  const bool is_float8 = type == cuda::GroupedType::kFloat8;
  while (!chosen && !untried.empty()) {
    const cuda::GroupedKernel kernel = untried.front();
    untried.erase(untried.begin());
    const std::string name = std::string("products of ") + (is_float8 ? "float8 " : "") + "experts by " + kernel.name;
    if (passes_self_check(name, [&] {
          return GroupedProblem(ops_, gemm_, is_float8 ? float8_numbers() : bfloat16_numbers()).run(kernel);
        })) {
      chosen = kernel;
    }
  }
  return chosen ? &*chosen : nullptr;
}

}  // namespace turbomind
