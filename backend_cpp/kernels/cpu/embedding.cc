#include "kernels/embedding.h"

namespace turbomind {

namespace {

template <class T>
void embed_rows(const LinearWeight& table, const int32_t* tokens, int rows, float scale, float* y) {
  const auto size = static_cast<size_t>(table.in_features);
  for (int row = 0; row < rows; ++row) {
    const T* source = static_cast<const T*>(table.data) + static_cast<size_t>(tokens[row]) * size;
    float* target = y + static_cast<size_t>(row) * size;
    for (size_t i = 0; i < size; ++i) target[i] = to_float(source[i]) * scale;
  }
}

}  // namespace

void embed(const LinearWeight& table, const int32_t* tokens, int rows, float scale, float* y) {
  if (table.format == WeightFormat::kFloat32) return embed_rows<float>(table, tokens, rows, scale, y);
  if (table.format == WeightFormat::kFloat16) return embed_rows<half>(table, tokens, rows, scale, y);
  return embed_rows<bf16>(table, tokens, rows, scale, y);
}

}  // namespace turbomind
