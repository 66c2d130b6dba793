#include "kernels/rope.h"

#include <cmath>

#include "kernels/cpu/for_rows.h"

namespace turbomind {

namespace {

template <bool is_interleaved>
void rotate(const RopeTable& table, size_t row, int head_dim, float factor, float* head) {
  const float* cosine = table.cosine + row * static_cast<size_t>(table.pairs);
  const float* sine = table.sine + row * static_cast<size_t>(table.pairs);
  for (int i = 0; i < table.pairs; ++i) {
    float& first = head[is_interleaved ? 2 * i : i];
    float& second = head[is_interleaved ? 2 * i + 1 : i + table.pairs];
    const float a = first;
    const float b = second;
    first = (a * cosine[i] - b * sine[i]) * factor;
    second = (b * cosine[i] + a * sine[i]) * factor;
  }
  for (int i = 2 * table.pairs; i < head_dim; ++i) head[i] *= factor;
}

}  // namespace

void rope_table(ThreadPool& pool, const RopeAngles& angles, int rows, float* cosine, float* sine) {
  constexpr int kWork = 16;  // a pair takes as long as this many elements of other loops
  const auto pairs = static_cast<size_t>(angles.pairs);
  for_rows(pool, rows, kWork * angles.pairs, [&](size_t row) {
    const int32_t* position = angles.positions + row * static_cast<size_t>(angles.axes);
    const auto set = static_cast<size_t>(angles.sets != nullptr ? angles.sets[row] : 0);
    const float* frequencies = angles.frequencies + set * pairs;
    for (size_t i = 0; i < pairs; ++i) {
      const int32_t axis = angles.axis_of_pair != nullptr ? angles.axis_of_pair[i] : 0;
      const float angle = static_cast<float>(position[axis]) * frequencies[i];
      cosine[row * pairs + i] = std::cos(angle) * angles.scale;
      sine[row * pairs + i] = std::sin(angle) * angles.scale;
    }
  });
}

void rope_row(const RopeTable& table, size_t row, const HeadsView& heads, const float* factors) {
  if (table.pairs == 0 && factors == nullptr) return;
  const auto rotate_head = table.is_interleaved ? rotate<true> : rotate<false>;
  const float factor = factors != nullptr ? factors[row] : 1.0f;
  for (int h = 0; h < heads.heads; ++h) rotate_head(table, row, heads.head_dim, factor, heads.head(row, h));
}

void rope(ThreadPool& pool, const RopeTable& table, const HeadsView& heads, const float* factors) {
  for_rows(pool, heads.rows, 2 * heads.heads * heads.head_dim,
           [&](size_t row) { rope_row(table, row, heads, factors); });
}

}  // namespace turbomind
