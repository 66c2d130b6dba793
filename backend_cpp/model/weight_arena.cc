#include "model/weight_arena.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace turbomind {

namespace {

constexpr size_t kChunkBytes = size_t{64} << 20;  // takes memory only where it is written
constexpr size_t kAlignment = 64;

}  // namespace

LinearWeight WeightArena::add(const LinearStorage& storage) {
  LinearWeight view = storage.view;
  view.data = copy(storage.data);
  view.scales = static_cast<const half*>(copy(storage.scales));
  view.zeros = static_cast<const uint8_t*>(copy(storage.zeros));
  view.input_order = static_cast<const int32_t*>(copy(storage.input_order));
  view.bias = static_cast<const float*>(copy(storage.bias));
  return view;
}

void* WeightArena::copy(const AlignedBuffer& source) {
  if (source.size() == 0) return nullptr;
  const size_t bytes = (source.size() + kAlignment - 1) / kAlignment * kAlignment;
  if (chunks_.empty() || used_ + bytes > chunks_.back().size()) {
    chunks_.emplace_back(std::max(kChunkBytes, bytes));
    used_ = 0;
  }
  auto* target = chunks_.back().as<std::byte>() + used_;
  std::memcpy(target, source.as<void>(), source.size());
  used_ += bytes;
  return target;
}

}  // namespace turbomind
