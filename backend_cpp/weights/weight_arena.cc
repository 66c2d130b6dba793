#include "weights/weight_arena.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

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
  view.mins = static_cast<const half*>(copy(storage.mins));
  view.input_order = static_cast<const int32_t*>(copy(storage.input_order));
  view.block_scales = static_cast<const float*>(copy(storage.block_scales));
  view.output_scales = static_cast<const float*>(copy(storage.output_scales));
  view.bias = static_cast<const float*>(copy(storage.bias));
  return view;
}

void WeightArena::move(const std::function<void(AlignedBuffer& chunk)>& move, const std::vector<LinearWeight*>& views) {
  struct Range {
    const std::byte* first;
    const std::byte* last;
    const std::byte* now;
  };
  std::vector<Range> ranges;
  for (AlignedBuffer& chunk : chunks_) {
    const auto* first = chunk.as<std::byte>();
    const size_t bytes = chunk.size();
    move(chunk);
    ranges.push_back({first, first + bytes, chunk.as<std::byte>()});
  }
  const auto rebase = [&](auto*& pointer) {
    const auto* address = reinterpret_cast<const std::byte*>(pointer);
    for (const Range& range : ranges) {
      if (address < range.first || address >= range.last) continue;
      pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(range.now + (address - range.first));
      return;
    }
  };
  for (LinearWeight* view : views) {
    rebase(view->data);
    rebase(view->scales);
    rebase(view->zeros);
    rebase(view->mins);
    rebase(view->input_order);
    rebase(view->block_scales);
    rebase(view->output_scales);
    rebase(view->bias);
  }
}

void* WeightArena::copy(const AlignedBuffer& source) {
  if (source.size() == 0) return nullptr;
  const size_t bytes = (source.size() + kAlignment - 1) / kAlignment * kAlignment;
  if (chunks_.empty() || used_ + bytes > chunks_.back().size()) {
    chunks_.emplace_back(std::max(kChunkBytes, bytes));
    used_ = 0;
  }
  auto* target = chunks_.back().as<std::byte>() + used_;
  if (!only_sizes_) std::memcpy(target, source.as<void>(), source.size());
  used_ += bytes;
  return target;
}

}  // namespace turbomind
