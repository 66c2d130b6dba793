// Images that tokens look at by cross-attention.
#pragma once

#include <memory>
#include <vector>

#include "model/embedding_range.h"

namespace turbomind::testing {

// An image of `rows` rows, whose numbers are `content` + 0, 1, ...; equal contents are equal images.
inline EmbeddingRange image_at(int token, int content, int rows) {
  EmbeddingRange range;
  range.begin = token;
  range.count = 1;
  range.digest[0] = static_cast<uint8_t>(content);
  range.digest[1] = static_cast<uint8_t>(content >> 8);
  std::vector<float> numbers{-1};
  for (int row = 0; row < rows; ++row) numbers.push_back(static_cast<float>(content + row));
  const auto* bytes = reinterpret_cast<const std::byte*>(numbers.data());
  range.rows = std::make_shared<const EmbeddingRows>(
      EmbeddingRows{DType::kFloat32, 1, {bytes, bytes + numbers.size() * sizeof(float)}});
  return range;
}

}  // namespace turbomind::testing
