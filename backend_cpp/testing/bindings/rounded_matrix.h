// A float32 matrix rounded to 8 or 4 bits, as weights are while a model loads.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/packed_weight.h"

namespace turbomind {

struct RoundedMatrix {
  std::vector<uint8_t> codes;
  std::vector<half> scales;
  LinearWeight view;  // of the two above; moving keeps it valid, copying does not

  // w [out_features, in_features]
  RoundedMatrix(const float* w, int out_features, int in_features, int bits, int group) {
    const PackedShape shape{out_features, in_features, bits, group};
    codes.resize(shape.code_bytes());
    scales.resize(shape.scale_count());
    for (int tile = 0; tile < shape.tiles(); ++tile) {
      const int first = tile * kTileOutputs;
      const size_t groups = static_cast<size_t>(tile) * shape.groups();
      quantize_and_pack_tile(shape, w + static_cast<size_t>(first) * in_features,
                             std::min(kTileOutputs, out_features - first), codes.data() + groups * shape.group_bytes(),
                             scales.data() + groups * kTileOutputs);
    }
    view = {
        codes.data(), bits == 8 ? WeightFormat::kInt8 : WeightFormat::kInt4, out_features, in_features, nullptr, group,
        scales.data()};
  }
  RoundedMatrix(RoundedMatrix&&) = default;
  RoundedMatrix& operator=(RoundedMatrix&&) = default;
};

}  // namespace turbomind
