// Rows that stand in place of token embeddings: those of pictures.
#pragma once

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

// [rows, width], as the caller has them.
struct EmbeddingRows {
  DType type = DType::kFloat32;
  int width = 0;
  std::vector<std::byte> data;

  size_t row_bytes() const { return static_cast<size_t>(width) * byte_size(type); }
  // 0 where the data is no whole number of rows.
  size_t count() const;
  // The row as float32 [width].
  void read(int row, float* to) const;
};

// The embeddings of `count` tokens from number `begin` on are rows 0, 1, ... What those tokens are called does not
// matter to the model.
struct EmbeddingRange {
  int begin = 0;
  int count = 0;
  ContentDigest digest{};
  std::shared_ptr<const EmbeddingRows> rows;

  int end() const { return begin + count; }
};

// The part of `ranges`, which ascend and do not overlap, that reaches into tokens [begin, end).
std::span<const EmbeddingRange> ranges_within(std::span<const EmbeddingRange> ranges, int begin, int end);

}  // namespace turbomind
