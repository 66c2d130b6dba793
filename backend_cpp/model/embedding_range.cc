#include "model/embedding_range.h"

#include <algorithm>

namespace turbomind {

namespace {

template <class T>
void upcast(const std::byte* from, int count, float* to) {
  for (int i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, from + static_cast<size_t>(i) * sizeof(T), sizeof(T));
    to[i] = to_float(value);
  }
}

}  // namespace

std::optional<DType> dtype_of(std::string_view name) {
  if (name == "float32") return DType::kFloat32;
  if (name == "bfloat16") return DType::kBFloat16;
  if (name == "float16") return DType::kFloat16;
  return std::nullopt;
}

size_t EmbeddingRows::count() const {
  return width > 0 && data.size() % row_bytes() == 0 ? data.size() / row_bytes() : 0;
}

void EmbeddingRows::read(int row, int first, int count, float* to) const {
  const std::byte* from =
      data.data() + static_cast<size_t>(row) * row_bytes() + static_cast<size_t>(first) * byte_size(type);
  switch (type) {
    case DType::kFloat32:
      return upcast<float>(from, count, to);
    case DType::kBFloat16:
      return upcast<bf16>(from, count, to);
    case DType::kFloat16:
      return upcast<half>(from, count, to);
  }
}

std::span<const EmbeddingRange> ranges_within(std::span<const EmbeddingRange> ranges, int begin, int end) {
  const auto first = std::partition_point(ranges.begin(), ranges.end(),
                                          [begin](const EmbeddingRange& range) { return range.end() <= begin; });
  const auto last =
      std::partition_point(first, ranges.end(), [end](const EmbeddingRange& range) { return range.begin < end; });
  return {first, last};
}

}  // namespace turbomind
