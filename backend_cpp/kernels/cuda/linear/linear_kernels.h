// The kernels behind `linear`, `head_linear` and `add_experts`. Which rows and weights they work on: linear_task.cuh.
#pragma once

#include "kernels/cuda/device_memory.h"
#include "kernels/cuda/linear/linear_task.cuh"

namespace turbomind::cuda {

// Counters that a LinearTask may need.
inline constexpr int kSplitCounters = 4096;
// The most scratch memory stream_linear and tile_linear take.
size_t split_scratch_bytes();

// Each takes the parts of the task to be of at most `part_rows` rows; `expert_parts` is the number of parts that there
// can be where the task has experts.

// Weights of 16, 8 or 4 bits and x float32, whose rows are aligned to 16 bytes and, of a packed weight, in the order of
// the codes. 16-bit weights: in_features is a multiple of 8. At most kStreamRows rows.
inline constexpr int kStreamRows = 16;
void stream_linear(cudaStream_t stream, Scratch scratch, const LinearTask& task, int part_rows, int expert_parts = 0);
// Its part for weights of 8 and 4 bits.
void stream_codes(cudaStream_t stream, Scratch scratch, const LinearTask& task, int part_rows, int expert_parts);

// The same weights and x as round_rows makes it. At most kTileRows rows.
inline constexpr int kTileRows = 64;
void tile_linear(cudaStream_t stream, Scratch scratch, const LinearTask& task, int part_rows, int expert_parts = 0);

// Weights of 8 and 4 bits in groups of whole steps, and x as round_for_ring makes it for `columns`.
bool has_ring(const LinearWeight& weight);
int ring_columns(const LinearWeight& weight, int rows);
void ring_linear(cudaStream_t stream, Scratch scratch, const LinearTask& task, int columns);

// Any weight that is not packed, x float32; nothing needs to be aligned. kPlainRows rows a part.
inline constexpr int kPlainRows = 8;
void plain_linear(cudaStream_t stream, const LinearTask& task, int expert_parts = 0);

// Whether stream_linear and tile_linear take the weight.
bool has_whole_chunks(const LinearWeight& weight);

}  // namespace turbomind::cuda
