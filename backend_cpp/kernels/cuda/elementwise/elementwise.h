// Elementwise and row-wise kernels of a GPU; formulas: the headers of kernels/ and device/operators.h. NaN stays NaN.
#pragma once

#include <algorithm>
#include <array>

#include "kernels/activation.h"
#include "kernels/cuda/device.h"
#include "kernels/heads_view.h"
#include "kernels/linear.h"
#include "kernels/norm.h"
#include "kernels/rope.h"

namespace turbomind::cuda {

void activate(cudaStream_t stream, Activation activation, const HeadsView& gate, const HeadsView& up,
              const HeadsView& y);
void apply(cudaStream_t stream, const Pointwise& function, const HeadsView& x);
void add_scaled(cudaStream_t stream, float scale, const float* x, int rows, int size, float* y);
void norm(cudaStream_t stream, const NormWeight& weight, const HeadsView& x, const HeadsView& y);
void rope_table(cudaStream_t stream, const RopeAngles& angles, int rows, float* cosine, float* sine);
void rope(cudaStream_t stream, const RopeTable& table, const HeadsView& heads, const float* factors);

// Inputs and outputs do not overlap.
void embed(cudaStream_t stream, const LinearWeight& table, const int32_t* tokens, int rows, float scale, float* y);
void scatter_rows(cudaStream_t stream, const float* x, const int32_t* indices, int count, int size, float* y,
                  bool accumulate);
void copy_heads(cudaStream_t stream, const HeadsView& from, const HeadsView& to);

// Rows of bfloat16 as float32: to [rows, width]; width is a multiple of 4. Rows from *filled (the device's) on are
// not written; null: all are.
void upcast_rows(cudaStream_t stream, const uint16_t* rounded, int rows, int width, const int32_t* filled, float* to);

// Inputs of a step that the host has prepared, brought to the device by one launch, which reads the host's pinned
// memory itself: many small copies, each of which waits for the one before, take longer than what they bring.
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
void upload_pieces(cudaStream_t stream, const StagedPieces& pieces);

}  // namespace turbomind::cuda
