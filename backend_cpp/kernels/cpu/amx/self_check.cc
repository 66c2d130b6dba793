#include <cstring>
#include <vector>

#include "kernels/cpu/isa.h"

namespace turbomind {

namespace {

constexpr int kRows = 20;     // a tile, and a part of one
constexpr int kOutputs = 32;  // two tiles
constexpr int kInputs = 128;  // two products of bytes, four of bfloat16
constexpr int kGroup = 32;

// Numbers without a pattern that tiles could share (Knuth, "Seminumerical Algorithms", 3.3.4).
class Numbers {
 public:
  uint32_t next() { return (state_ = state_ * 1664525u + 1013904223u) >> 8; }
  float next_float() { return static_cast<float>(next() & 0xFFFFu) / 32768.0f - 1.0f; }

 private:
  uint32_t state_ = 1;
};

std::vector<float> product(const KernelTable& table, const LinearWeight& weight, const std::vector<float>& x) {
  std::vector<float> y(static_cast<size_t>(kRows) * kOutputs);
  multiply(table, weight, x.data(), kRows, y.data());
  return y;
}

}  // namespace

bool has_same_gemms(const KernelTable& table, const KernelTable& reference) {
  Numbers numbers;
  std::vector<float> x(static_cast<size_t>(kRows) * kInputs);
  for (float& value : x) value = numbers.next_float();
  std::vector<uint8_t> quantized(static_cast<size_t>(kOutputs) * kInputs);
  for (uint8_t& q : quantized) q = static_cast<uint8_t>(numbers.next());
  std::vector<half> scales(static_cast<size_t>(kOutputs) * kInputs / kGroup);
  for (half& scale : scales) scale = to_half(0.02f + numbers.next_float() / 64.0f);
  std::vector<bf16> values(static_cast<size_t>(kOutputs) * kInputs);
  for (bf16& value : values) value = to_bf16(numbers.next_float());

  for (const WeightFormat format :
       {WeightFormat::kInt8, WeightFormat::kInt6, WeightFormat::kInt5, WeightFormat::kInt4, WeightFormat::kBFloat16}) {
    LinearWeight weight;
    weight.format = format;
    weight.out_features = kOutputs;
    weight.in_features = kInputs;
    weight.data = format == WeightFormat::kBFloat16 ? static_cast<const void*>(values.data()) : quantized.data();
    weight.is_tiled = !weight.is_packed();
    if (weight.is_packed()) {
      weight.group = kGroup;
      weight.scales = scales.data();
    }
    const std::vector<float> mine = product(table, weight, x);
    const std::vector<float> reference_sums = product(reference, weight, x);
    if (std::memcmp(mine.data(), reference_sums.data(), mine.size() * sizeof(float)) != 0) return false;
  }
  return true;
}

}  // namespace turbomind
