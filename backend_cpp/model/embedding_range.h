// Ranges of tokens with given embeddings (images).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/types.h"

namespace turbomind {

// "float32", "bfloat16" or "float16"; none for another name.
std::optional<DType> dtype_of(std::string_view name);

// A digest of what rows were made of: equal digests mean equal rows.
using ContentDigest = std::array<uint8_t, 32>;

// Where the tokens of an image or video stand for a model whose positions have three axes (M-RoPE; Wang et al., 2024):
// on a grid of frames, rows and columns, the columns of a row following each other. Frame i is at i * frame_step, less
// its fraction. What comes after continues after the grid's longest side.
struct ImageGrid {
  int frames = 0;  // 0: none; tokens follow each other as those of text do
  int rows = 0;
  int columns = 0;
  float frame_step = 1;

  bool is_given() const { return frames > 0; }
  int position_of_frame(int frame) const { return static_cast<int>(static_cast<float>(frame) * frame_step); }
  int longest_side() const { return std::max({position_of_frame(frames - 1) + 1, rows, columns}); }
  bool operator==(const ImageGrid&) const = default;
};

// [rows, width], as the caller has them.
struct EmbeddingRows {
  DType type = DType::kFloat32;
  int width = 0;
  std::vector<std::byte> data;

  size_t row_bytes() const { return static_cast<size_t>(width) * byte_size(type); }
  // 0 where the data is no whole number of rows.
  size_t count() const;
  // `count` numbers of a row, from number `first` on, as float32.
  void read(int row, int first, int count, float* to) const;
};

// The embeddings of `count` tokens from number `begin` on are rows 0, 1, ... What those tokens are called does not
// matter to the model. Rows after these stand for no token: tokens look at them by cross-attention
// (model/image_group.h).
struct EmbeddingRange {
  int begin = 0;
  int count = 0;
  ContentDigest digest{};
  std::shared_ptr<const EmbeddingRows> rows;
  ImageGrid grid{};

  int end() const { return begin + count; }
  int cross_tokens() const { return rows ? static_cast<int>(rows->count()) - count : 0; }
  // By how much the positions after it are further on than its tokens' number says; mostly negative.
  int shift() const { return grid.is_given() ? grid.longest_side() - count : 0; }
};

// The part of `ranges`, which ascend and do not overlap, that reaches into tokens [begin, end).
std::span<const EmbeddingRange> ranges_within(std::span<const EmbeddingRange> ranges, int begin, int end);

}  // namespace turbomind
