// A device for tests: its operators (device/operators.h) on NumPy arrays. Each call uploads, computes and downloads.
#pragma once

#include <list>
#include <memory>
#include <tuple>
#include <vector>

#include "testing/bindings/arrays.h"

namespace turbomind {

struct TestDevice {
  std::unique_ptr<Operators> ops;
  // Lists of experts stay where they are as long as the operators live.
  std::list<std::vector<ExpertWeight>> experts;
};

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

using DeviceClass = pybind11::class_<TestDevice>;

// Each adds methods that are named as the operators are. Arrays called `like` give the shape of a result.
void bind_attention(pybind11::module_& m);
void bind_elementwise(DeviceClass& device);
void bind_heads(pybind11::module_& m);  // of models, on the CPU
void bind_linear(pybind11::module_& m, DeviceClass& device);
void bind_lora(DeviceClass& device);
void bind_moe(DeviceClass& device);
void bind_ranks(pybind11::module_& m);  // of groups
void bind_host_sampling(pybind11::module_& m);
void bind_recurrence(DeviceClass& device);

}  // namespace turbomind
