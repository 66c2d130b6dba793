// What the host has prepared for a step, brought to the device by one launch, which reads the host's pinned memory
// itself: many small copies, each of which waits for the one before, take longer than what they bring.
#pragma once

#include <algorithm>
#include <array>

#include "kernels/cuda/device.h"

namespace turbomind::cuda {

struct StagedPiece {
  const std::byte* from = nullptr;  // pinned memory of the host
  std::byte* to = nullptr;
  unsigned bytes = 0;
};

struct StagedPieces {
  static constexpr size_t kMax = 24;
  static constexpr size_t kMaxBytes = size_t{64} << 10;  // of a piece; a copy brings more faster

  std::array<StagedPiece, kMax> pieces;
  size_t count = 0;

  static bool takes(const void* from, size_t bytes, const void* to) {
    constexpr uintptr_t kAlignment = 16;
    return bytes <= kMaxBytes && bytes % sizeof(uint32_t) == 0 && reinterpret_cast<uintptr_t>(from) % kAlignment == 0 &&
           reinterpret_cast<uintptr_t>(to) % kAlignment == 0;
  }
  bool is_full() const { return count == kMax; }
  bool has(const void* to) const {
    return std::any_of(pieces.begin(), pieces.begin() + count,
                       [to](const StagedPiece& piece) { return piece.to == to; });
  }
  void add(const void* from, size_t bytes, void* to) {
    pieces[count++] = {static_cast<const std::byte*>(from), static_cast<std::byte*>(to), static_cast<unsigned>(bytes)};
  }
};

// Each piece goes where nothing else of them does. The host's memory stays as it is until the stream has come so far.
void bring_pieces(cudaStream_t stream, const StagedPieces& pieces);

}  // namespace turbomind::cuda
