// A device for tests: its operators (device/operators.h) on NumPy arrays. Each call uploads, computes and downloads.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <list>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <vector>

#include "device/operators.h"
#include "kernels/packed_weight.h"

namespace turbomind {

struct TestDevice {
  std::unique_ptr<Operators> ops;
  // Lists of experts stay where they are as long as the operators live.
  std::list<std::vector<ExpertWeight>> experts;
  bool has_tiled_weights = false;
};

// Row-major; no other type is converted.
template <class T>
using Array = pybind11::array_t<T, pybind11::array::c_style>;

template <class T>
using OptionalArray = std::optional<Array<T>>;

template <class T>
int size_of(const Array<T>& array, int dimension) {
  return static_cast<int>(array.shape(dimension));
}

// A copy of an array in the memory of a device, which must outlive it; null where there is no array.
template <class T>
class OnDevice {
 public:
  OnDevice(Operators& ops, const OptionalArray<T>& array) : ops_(&ops) {
    if (!array) return;
    *this = OnDevice(ops, array->data(), static_cast<size_t>(array->size()));
    shape_.assign(array->shape(), array->shape() + array->ndim());
  }
  OnDevice(Operators& ops, const T* elements, size_t count)
      : ops_(&ops), buffer_(ops.allocate(count * sizeof(T))), shape_{static_cast<pybind11::ssize_t>(count)} {
    ops.upload(elements, buffer_.size(), data());
  }

  T* data() const { return buffer_.template as<T>(); }
  operator T*() const { return data(); }
  int dims() const { return static_cast<int>(shape_.size()); }
  int size(int dimension) const { return static_cast<int>(shape_.at(static_cast<size_t>(dimension))); }
  size_t bytes() const { return buffer_.size(); }

  Array<T> fetch() const {
    Array<T> array(shape_);
    ops_->download(data(), buffer_.size(), array.mutable_data());
    return array;
  }

 private:
  Operators* ops_;
  AlignedBuffer buffer_;
  std::vector<pybind11::ssize_t> shape_;
};

using Floats = OnDevice<float>;
using Ints = OnDevice<int32_t>;

// How Python gives a parameter of a method.
template <class T>
struct Given {
  using Type = T;
  static T taken(Operators&, T given) { return given; }
};
template <class T>
struct Given<const OnDevice<T>&> {
  using Type = OptionalArray<T>;
  static OnDevice<T> taken(Operators& ops, const OptionalArray<T>& given) { return {ops, given}; }
};

using DeviceClass = pybind11::class_<TestDevice>;

// A method of a device: `body`, to which Python gives arrays, or None, for parameters that are OnDevice. What it writes
// over is an array too, called `like` where only its shape is read.
template <class Body, class Result, class... Parameters>
void add_method(DeviceClass& device, const char* name, Body body, Result (Body::*)(TestDevice&, Parameters...) const) {
  device.def(name, [body](TestDevice& d, typename Given<Parameters>::Type... given) {
    return body(d, Given<Parameters>::taken(*d.ops, given)...);
  });
}
template <class Body>
void add_method(DeviceClass& device, const char* name, Body body) {
  add_method(device, name, body, &Body::operator());
}

// The heads x [rows, heads, head_dim].
inline HeadsView heads_of(const Floats& x) {
  const auto head_dim = static_cast<size_t>(x.size(2));
  return {x, x.size(0), head_dim * static_cast<size_t>(x.size(1)), x.size(1), head_dim, x.size(2)};
}

// A linear layer's weight; arguments as in LinearWeight, `data` holds the bytes.
class WeightOnDevice {
 public:
  WeightOnDevice(Operators& ops, const pybind11::array& data, WeightFormat format, int out_features, int in_features,
                 const OptionalArray<float>& bias, int group, const OptionalArray<uint16_t>& scales,
                 const OptionalArray<uint8_t>& zeros, const OptionalArray<int32_t>& input_order,
                 const OptionalArray<float>& block_scales, const OptionalArray<float>& output_scales,
                 const OptionalArray<uint16_t>& mins, int scale_groups, bool is_tiled)
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
             bias_,
             group,
             reinterpret_cast<const half*>(scales_.data()),
             zeros_,
             input_order_,
             block_scales_,
             output_scales_,
             reinterpret_cast<const half*>(mins_.data()),
             scale_groups};
    layer_ = expert_ = view_;
    if (view_.is_packed()) {
      if (ops.shares_host_memory()) return;
      laid_out_.emplace(ops, static_cast<const std::byte*>(data.data()), data_.bytes());
      layer_.data = laid_out_->data();
      ops.lay_out(layer_);
    } else if (is_tiled) {
      std::vector<std::byte> tiles(tiled_bytes(view_));
      tile_rows(view_, tiles.data());
      laid_out_.emplace(ops, tiles.data(), tiles.size());
      expert_.data = laid_out_->data();
      expert_.is_tiled = true;
      layer_ = expert_;
    }
  }
  // As tables and operations on heads read it; as experts do; as linear layers do.
  const LinearWeight& view() const { return view_; }
  const LinearWeight& expert() const { return expert_; }
  const LinearWeight& layer() const { return layer_; }

 private:
  OnDevice<std::byte> data_;
  Floats bias_;
  OnDevice<uint16_t> scales_;
  OnDevice<uint8_t> zeros_;
  Ints input_order_;
  Floats block_scales_;
  Floats output_scales_;
  OnDevice<uint16_t> mins_;
  std::optional<OnDevice<std::byte>> laid_out_;
  LinearWeight view_;
  LinearWeight expert_;
  LinearWeight layer_;
};

// Sets the field `name` where a dictionary has it.
template <class T>
void take_field(const pybind11::dict& given, const char* name, T& field) {
  if (given.contains(name)) field = given[name].template cast<T>();
}

// The fields of SamplingParams.
template <class Params>
void take_sampling_fields(const pybind11::dict& given, Params& params) {
  take_field(given, "is_greedy", params.is_greedy);
  take_field(given, "seed", params.seed);
  take_field(given, "draw", params.draw);
  visit_sampling(params, [&](const char* name, auto& field, const auto&) { take_field(given, name, field); });
}

// Query heads, key heads, key_dim, value_dim, block_len.
using CacheSizes = std::tuple<int, int, int, int, int>;

// Of one layer, with values of 32, 16, 8 or 4 bits.
inline CacheLayout cache_layout(int bits, const CacheSizes& sizes) {
  const auto& [num_heads, num_kv_heads, key_dim, value_dim, block_len] = sizes;
  const CacheType type = bits == 32   ? CacheType::kFloat32
                         : bits == 16 ? CacheType::kBFloat16
                         : bits == 8  ? CacheType::kInt8
                                      : CacheType::kInt4;
  return {type, 1, num_kv_heads, key_dim, value_dim, block_len};
}

// Each adds methods that are named as the operators are.
void bind_attention(pybind11::module_& m);
void bind_heads(pybind11::module_& m);  // of models, on the CPU
void bind_linear(pybind11::module_& m, DeviceClass& device);
void bind_moe(DeviceClass& device);
void bind_ranks(pybind11::module_& m);  // of groups
void bind_host_sampling(pybind11::module_& m);
void bind_operations(DeviceClass& device);

}  // namespace turbomind
