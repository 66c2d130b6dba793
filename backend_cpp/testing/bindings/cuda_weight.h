// Weights on the device, for tests of CUDA operators.
#pragma once

#include <algorithm>
#include <memory>

#include "kernels/cuda/linear/linear.h"
#include "kernels/packed_weight.h"
#include "testing/bindings/cuda_bindings.h"

namespace turbomind::cuda {

// What linear operators work with, and its memory.
class TestScratch {
 public:
  explicit TestScratch(size_t bytes);
  LinearScratch view() const;

 private:
  std::unique_ptr<Gemm> gemm_;
  AlignedBuffer memory_;
  SplitCounters counters_;
};

// Arguments as in LinearWeight; `weight` holds the bytes.
class WeightOnDevice {
 public:
  WeightOnDevice(const pybind11::array& weight, const OptionalArray<float>& bias, const OptionalArray<uint16_t>& scales,
                 const OptionalArray<uint8_t>& zeros, const OptionalArray<int32_t>& input_order, int format,
                 int out_features, int in_features, int group, const OptionalArray<float>& block_scales,
                 const OptionalArray<float>& output_scales);
  const LinearWeight& view() const { return view_; }

 private:
  AlignedBuffer data_;
  OnDevice<float> bias_;
  OnDevice<uint16_t> scales_;
  OnDevice<uint8_t> zeros_;
  OnDevice<int32_t> input_order_;
  OnDevice<float> block_scales_;
  OnDevice<float> output_scales_;
  LinearWeight view_;
};

// Calls pack(first row, rows, codes, scales) for each tile; returns all codes and scales.
template <class Pack>
pybind11::tuple pack_tiles(const PackedShape& shape, Pack&& pack) {
  Array<uint8_t> codes(static_cast<pybind11::ssize_t>(shape.code_bytes()));
  Array<uint16_t> scales(static_cast<pybind11::ssize_t>(shape.scale_count()));
  for (int tile = 0; tile < shape.tiles(); ++tile) {
    const int first = tile * kTileOutputs;
    const size_t groups = static_cast<size_t>(tile) * shape.groups();
    pack(first, std::min(kTileOutputs, shape.out_features - first), codes.mutable_data() + groups * shape.group_bytes(),
         reinterpret_cast<half*>(scales.mutable_data()) + groups * kTileOutputs);
  }
  return pybind11::make_tuple(codes, scales);
}

}  // namespace turbomind::cuda
