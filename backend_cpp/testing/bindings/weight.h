// A linear layer's weight in a device's memory, for tests.
#pragma once

#include "testing/bindings/arrays.h"

namespace turbomind {

// Arguments as in LinearWeight; `data` holds the bytes.
class WeightOnDevice {
 public:
  WeightOnDevice(Operators& ops, const pybind11::array& data, WeightFormat format, int out_features, int in_features,
                 const OptionalArray<float>& bias, int group, const OptionalArray<uint16_t>& scales,
                 const OptionalArray<uint8_t>& zeros, const OptionalArray<int32_t>& input_order,
                 const OptionalArray<float>& block_scales, const OptionalArray<float>& output_scales,
                 const OptionalArray<uint16_t>& mins)
      : data_(ops, static_cast<const std::byte*>(data.data()), static_cast<size_t>(data.nbytes())),
        bias_(ops, bias),
        scales_(ops, scales),
        zeros_(ops, zeros),
        input_order_(ops, input_order),
        block_scales_(ops, block_scales),
        output_scales_(ops, output_scales),
        mins_(ops, mins) {
    view_ = {data_.data(),
             format,
             out_features,
             in_features,
             bias_.data(),
             group,
             reinterpret_cast<const half*>(scales_.data()),
             zeros_.data(),
             input_order_.data(),
             block_scales_.data(),
             output_scales_.data(),
             reinterpret_cast<const half*>(mins_.data())};
  }
  const LinearWeight& view() const { return view_; }

 private:
  OnDevice<std::byte> data_;
  OnDevice<float> bias_;
  OnDevice<uint16_t> scales_;
  OnDevice<uint8_t> zeros_;
  OnDevice<int32_t> input_order_;
  OnDevice<float> block_scales_;
  OnDevice<float> output_scales_;
  OnDevice<uint16_t> mins_;
  LinearWeight view_;
};

}  // namespace turbomind
