#include "weights/mxfp4.h"

#include <cmath>
#include <limits>

#include "base/error.h"
#include "kernels/types.h"

namespace turbomind {

namespace {

constexpr int kBlockBytes = 16;
constexpr int kNoNumber = 255;
constexpr float kMagnitudes[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};

}  // namespace

CheckpointTensor decode_mxfp4(const CheckpointTensor& codes, const CheckpointTensor& scales) {
  std::vector<int64_t> expected = scales.shape;
  expected.push_back(kBlockBytes);
  if (codes.dtype != "U8" || scales.dtype != "U8" || scales.shape.empty() || codes.shape != expected) {
    throw invalid_argument("mxfp4 needs U8 codes [..., blocks, 16] and U8 scales [..., blocks]");
  }
  auto bytes = std::make_shared<std::vector<std::byte>>(codes.bytes * 2 * sizeof(bf16));
  auto* out = reinterpret_cast<bf16*>(bytes->data());
  bf16 values[16];
  for (size_t block = 0; block < scales.bytes; ++block) {
    const int scale = std::to_integer<int>(scales.data[block]);
    const float step = scale == kNoNumber ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0f, scale - 127);
    for (int code = 0; code < 16; ++code) values[code] = to_bf16((code < 8 ? step : -step) * kMagnitudes[code % 8]);
    for (size_t i = block * kBlockBytes; i < (block + 1) * kBlockBytes; ++i) {
      const int pair = std::to_integer<int>(codes.data[i]);
      *out++ = values[pair & 15];
      *out++ = values[pair >> 4];
    }
  }
  std::vector<int64_t> shape = scales.shape;
  shape.back() *= 2 * kBlockBytes;
  return {"BF16", std::move(shape), bytes->data(), bytes->size(), bytes};
}

}  // namespace turbomind
