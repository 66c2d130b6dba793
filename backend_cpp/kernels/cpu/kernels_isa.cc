// Row kernels of one instruction set; compiled once with each that kernels/cpu/isa.h names as TM_ISA. With TM_TILES,
// linear layers and attention use tiles.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/activation_rows.h"
#include "kernels/cpu/attention_block.h"
#include "kernels/cpu/index_scores.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/linear/in_vectors.h"
#include "kernels/cpu/linear/linear_block.h"
#include "kernels/cpu/linear/packed_block.h"
#include "kernels/cpu/lora_block.h"
#include "kernels/cpu/norm_rows.h"
#include "kernels/cpu/recurrence/conv_block.h"
#include "kernels/cpu/recurrence/gate_rows.h"
#include "kernels/cpu/recurrence/recur.h"
#include "kernels/cpu/recurrence/scan.h"
#include "kernels/cpu/simd.h"
#include "kernels/sampling.h"

#if defined(TM_TILES)
#include "kernels/cpu/amx/attention_on_tiles.h"
#include "kernels/cpu/amx/table.h"
#endif

#define TM_STRING_(name) #name
#define TM_STRING(name) TM_STRING_(name)

namespace turbomind::TM_ISA {

namespace {

int32_t argmax(const float* logits, int size) {
  Vec top = broadcast(-std::numeric_limits<float>::infinity());
  Vec poison = zero();  // becomes NaN when any value is NaN or infinite, and stays so
  int i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    const Vec v = load(logits + i);
    top = max(v, top);
    poison = fma(v, zero(), poison);
  }
  float largest = reduce_max(top);
  if (i < size) poison = fma(load_partial(logits + i, size - i), zero(), poison);
  for (; i < size; ++i) largest = logits[i] > largest ? logits[i] : largest;
  const float poisoned = reduce_add(poison);
  if (std::isnan(poisoned)) {
    for (int j = 0; j < size; ++j) {
      if (std::isnan(logits[j])) return -1;
    }
  }
  if (largest == -std::numeric_limits<float>::infinity()) return -1;
  for (int j = 0; j < size; ++j) {
    if (logits[j] == largest) return j;
  }
  return -1;
}

void chunk_maxima(const float* logits, int size, float* maxima) {
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  for (int first = 0; first < size; first += kLogitChunk, ++maxima) {
    const int count = std::min(kLogitChunk, size - first);
    Vec top = broadcast(kLowest);
    int i = 0;
    for (; i + kLanes <= count; i += kLanes) top = max(top, load(logits + first + i));
    *maxima = reduce_max(top);
    for (; i < count; ++i) *maxima = std::max(*maxima, logits[first + i]);
  }
}

void exp_weights(const float* logits, int size, float maximum, float factor, float* weights, float* sums) {
  const Vec shift = broadcast(-maximum);
  const Vec scale = broadcast(factor);
  for (int first = 0; first < size; first += kLogitChunk, ++sums) {
    const int count = std::min(kLogitChunk, size - first);
    Vec total = zero();
    for (int i = 0; i < count; i += kLanes) {
      const int lanes = std::min(kLanes, count - i);
      const float* source = logits + first + i;
      const Vec weight = exp(mul(add(lanes == kLanes ? load(source) : load_partial(source, lanes), shift), scale));
      if (lanes == kLanes) {
        store(weights + first + i, weight);
        total = add(total, weight);
      } else {
        store_partial(weights + first + i, weight, lanes);
        total = add(total, load_partial(weights + first + i, lanes));
      }
    }
    *sums = reduce_add(total);
  }
}

}  // namespace

constinit const KernelTable kTable = [] {
  KernelTable table = {.name = TM_STRING(TM_ISA),
                       .rows_plan = rows_plan_in_vectors,
                       .linear_block = linear_block,
                       .quantize_row = quantize_row,
                       .packed_block = packed_block,
                       .convert_row = convert_row_in_vectors,
                       .converted_block = converted_block_in_vectors,
                       .lora_expand_block = lora_expand_block,
                       .norm_row = norm_row,
                       .activate_row = activate_row,
                       .xielu_row = xielu_row,
                       .scale_softcap_row = scale_softcap_row,
                       .compute_attention = compute_attention,
                       .index_scores = index_scores,
                       .conv_block = conv_block,
                       .recurrence_gate_row = recurrence_gate_row,
                       .recurrence_columns = recurrence_columns,
                       .recur = recur,
                       .scan = scan,
                       .gated_lru = gated_lru,
                       .argmax = argmax,
                       .chunk_maxima = chunk_maxima,
                       .exp_weights = exp_weights};
#if defined(TM_TILES)
  table.rows_plan = rows_plan_on_tiles;
  table.packed_block = packed_block_by_layout;
  table.convert_row = convert_row_by_layout;
  table.converted_block = converted_block_by_format;
  table.compute_attention = attention_on_tiles;
#endif
  return table;
}();

}  // namespace turbomind::TM_ISA
