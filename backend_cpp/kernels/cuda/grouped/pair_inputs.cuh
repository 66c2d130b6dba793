// How the inputs of pairs (moe/sort_experts.h) are read: a row of x once, for all pairs that it goes to.
#pragma once

#include "kernels/cuda/grouped/grouped_product.h"
#include "kernels/cuda/quantize/made_rows.cuh"

namespace turbomind::cuda {

struct PairPlaces {
  explicit PairPlaces(const GroupedProduct& product)
      : slots(product.slots), of_each(product.pairs / product.x_rows), expert_of_pair(product.expert_of_pair) {}

  // The pair number k of a row, or -1.
  __device__ __forceinline__ int operator()(int row, int k) const {
    if (slots != nullptr) return slots[row * of_each + k];
    return expert_of_pair[row] >= 0 ? row : -1;
  }

  const int32_t* slots;
  int of_each;
  const int32_t* expert_of_pair;
};

// Calls visit with what reads the rows of a product's x.
template <class Visit>
void with_inputs(const GroupedProduct& product, Visit&& visit) {
  const RowsToRound from = rows_of(product.first, product.x, product.x_rows);
  if (product.x.gate.has_value()) {
    visit(GatedRows{*product.x.gate, from, product.x.bias});
  } else {
    visit(RowsAsTheyAre{from});
  }
}

}  // namespace turbomind::cuda
