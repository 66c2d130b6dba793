#include <algorithm>
#include <limits>

#include "kernels/activation.h"
#include "kernels/cpu/isa.h"
#include "kernels/norm.h"
#include "kernels/sampling.h"

namespace turbomind {

namespace {

constexpr int kChunkElements = 16384;

// Rows are grouped so that one chunk is worth a thread's while.
template <class RowBody>
void for_rows(ThreadPool& pool, int rows, int row_elements, RowBody&& body) {
  const int group = std::max(1, kChunkElements / std::max(row_elements, 1));
  pool.parallel_for((rows + group - 1) / group, [&](int chunk) {
    const int last = std::min(rows, (chunk + 1) * group);
    for (int row = chunk * group; row < last; ++row) body(static_cast<size_t>(row));
  });
}

}  // namespace

void rms_norm(ThreadPool& pool, const float* x, const float* weight, float eps, int rows, int size, float* y) {
  for_rows(pool, rows, size,
           [&](size_t row) { kernels().rms_norm_row(x + row * size, weight, eps, size, y + row * size); });
}

void silu_and_mul(ThreadPool& pool, const float* gate_up, int rows, int size, float* y) {
  for_rows(pool, rows, 4 * size,
           [&](size_t row) { kernels().silu_and_mul_row(gate_up + row * 2 * size, size, y + row * size); });
}

int32_t argmax(const float* logits, int size) {
  return kernels().argmax(logits, size);
}

void chunk_maxima(const float* logits, int size, float* maxima) {
  kernels().chunk_maxima(logits, size, maxima);
}

void exp_weights(const float* logits, int size, float maximum, float factor, float* weights, float* sums) {
  kernels().exp_weights(logits, size, maximum, factor, weights, sums);
}

void apply_mask(const int32_t* mask, int size, float* logits) {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  for (int first = 0; first < size; first += 32) {
    const auto bits = static_cast<uint32_t>(mask[first / 32]);
    if (bits == ~uint32_t{0}) continue;
    const int count = std::min(32, size - first);
    if (bits == 0) {
      std::fill(logits + first, logits + first + count, kNever);
      continue;
    }
    for (int i = 0; i < count; ++i) {
      if ((bits >> i & 1u) == 0) logits[first + i] = kNever;
    }
  }
}

}  // namespace turbomind
