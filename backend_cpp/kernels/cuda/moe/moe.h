// Mixture of experts on a GPU, as kernels/moe.h says; nothing returns to the host in between.
#pragma once

#include "kernels/cuda/grouped/grouped_kernel.h"
#include "kernels/cuda/linear/linear.h"
#include "kernels/moe.h"

namespace turbomind::cuda {

// logits [rows, num_experts] -> experts and weights [rows, top_k]. Scores are computed as the CPU does, step by step in
// float32, so that the same experts are chosen: exponentials are rounded from float64. Rows from *row_count (the
// device's) on go to no expert, -1; null: all rows go to some.
void route(cudaStream_t stream, const RouterParams& params, const float* logits, int rows, const int32_t* row_count,
           int32_t* experts, float* weights);

// The experts of a layer. All have the formats and sizes of the first.
struct ExpertTable {
  ExpertWeight first;                       // pointers of the first expert
  const ExpertWeight* on_device = nullptr;  // [count]; the table itself is on the device
  int count = 0;
  const GroupedKernel* library = nullptr;  // multiplies where experts have many rows; null: ours does
};

// A library's kernels of which type could multiply this many rows, each with top_k of the experts.
GroupedType library_type(const ExpertTable& experts, int rows, int top_k);

// The scratch memory that a call with up to `rows` rows takes.
size_t expert_scratch_bytes(const ExpertTable& experts, int rows, int top_k);

// y[row] += sum over the row's experts e, ascending, of weights[row, e] MLP_e(x[row]).
//   x, y [rows, hidden] float32, not overlapping; chosen, weights [rows, top_k] as `route` made them; top_k at most 32
// Rows that go to no expert add nothing, and no weight is read for them.
// The arithmetic of the products is that of linear.h.
void add_experts(cudaStream_t stream, const LinearScratch& scratch, Activation activation, const ExpertTable& experts,
                 const float* x, int rows, int top_k, const int32_t* chosen, const float* weights, float* y);

}  // namespace turbomind::cuda
