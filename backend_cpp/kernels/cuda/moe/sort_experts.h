// Rows sorted by expert.
#pragma once

#include "kernels/cuda/device_memory.h"
#include "kernels/moe.h"

namespace turbomind::cuda {

// Pairs of a row and one of its experts, sorted by expert and then by row; after them, as many as there are of rows
// that go to no expert, which is -1. All on the device.
struct SortedPairs {
  int32_t* rows;        // [pairs]
  int32_t* experts;     // [pairs]
  int32_t* slots;       // [pairs]; where pair number row top_k + k is in the two above, or -1: it has no expert
  ExpertRows* parts;    // [part_limit]; of an expert's pairs at most part_rows each
  int32_t* part_count;  // [1]
  int part_limit;       // no more parts can occur
};

SortedPairs take_pairs(Scratch& scratch, int rows, int top_k, int num_experts, int part_rows);
size_t sorted_pairs_bytes(int rows, int top_k, int num_experts);

// chosen [rows, top_k]
void sort_by_expert(cudaStream_t stream, const int32_t* chosen, int rows, int top_k, int num_experts, int part_rows,
                    const SortedPairs& sorted);

}  // namespace turbomind::cuda
