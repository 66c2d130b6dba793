// A matrix of one byte a code, with scales for blocks, packed as a checkpoint's is while a model loads.
#pragma once

#include <cstdint>
#include <vector>

#include "weights/w8a8.h"

namespace turbomind {

struct ScaledMatrix {
  LinearStorage storage;

  // codes [out_features, in_features]; scales [blocks of outputs, blocks of inputs]
  ScaledMatrix(const uint8_t* codes, bool is_float8, const float* scales, ScaleBlock block, int out_features,
               int in_features) {
    const int64_t rows = (out_features + block.outputs - 1) / block.outputs;
    const int64_t columns = (in_features + block.inputs - 1) / block.inputs;
    const W8A8Matrix matrix(tensor(is_float8 ? "F8_E4M3" : "I8", {out_features, in_features}, codes, 1),
                            tensor("F32", {rows, columns}, scales, sizeof(float)), block);
    std::vector<QuantizedRow> outputs;
    for (int output = 0; output < out_features; ++output) outputs.push_back({&matrix, output});
    storage = matrix.pack(outputs, in_order);
  }

 private:
  static CheckpointTensor tensor(const char* dtype, const std::vector<int64_t>& shape, const void* data, size_t size) {
    return {dtype, shape, static_cast<const std::byte*>(data), size * static_cast<size_t>(shape[0] * shape[1]),
            nullptr};
  }
};

}  // namespace turbomind
